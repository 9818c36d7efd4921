"""Kafka Streams with exactly_once_v2, through kills of the application and of the broker."""
