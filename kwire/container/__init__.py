"""The entry points of kwire's container image, which follow those of Apache Kafka's image."""
