"""Compatibility scenarios: confluent_kafka."""
