"""The Kafka wire format: message tables, their compiler, and frames."""
