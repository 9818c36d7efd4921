"""`--secure`: a node, a cluster or a test broker that is protected without further settings."""
