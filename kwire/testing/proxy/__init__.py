"""A proxy that injects faults in front of any Kafka cluster."""
