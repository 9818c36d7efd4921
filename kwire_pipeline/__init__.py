"""Topics become tables: a PySpark job beside the broker, which it knows only as a Kafka server."""
