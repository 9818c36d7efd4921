"""kwire: a Kafka-compatible server in Python."""

__version__ = "0.1.0"
