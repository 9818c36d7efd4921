"""`--secure`: nodes, clusters and test brokers that are protected without further settings."""
