"""Apache Kafka's own integration tests, with nodes of kwire in place of its brokers."""
