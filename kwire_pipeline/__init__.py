"""A PySpark job that writes a topic to tables; it uses the broker only as a Kafka client does."""
