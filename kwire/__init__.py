"""kwire: a Kafka-compatible server in Python."""
