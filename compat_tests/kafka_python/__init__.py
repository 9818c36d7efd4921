"""Compatibility scenarios: kafka_python."""
