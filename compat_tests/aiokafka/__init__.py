"""Compatibility scenarios: aiokafka."""
