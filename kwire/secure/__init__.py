"""`--secure`: nodes, clusters and test brokers protected without further settings."""
