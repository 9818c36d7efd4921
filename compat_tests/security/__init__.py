"""Clients that log in: kwire and Apache Kafka with the same settings."""
