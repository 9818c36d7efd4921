"""The simulation of replication: brokers with real logs and replicas, a controller, and faults."""
