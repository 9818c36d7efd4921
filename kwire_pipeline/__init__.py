"""A PySpark job that writes topics to tables; it uses the broker only as a Kafka client does."""
