"""Compatibility scenarios: Apache Kafka's own Java clients and tools."""
