"""A proxy that arranges faults in front of any Kafka cluster."""
