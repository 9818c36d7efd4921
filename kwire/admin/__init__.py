"""`kwire users` and `kwire acls`: who may log in to a Kafka cluster, and what they may do."""
