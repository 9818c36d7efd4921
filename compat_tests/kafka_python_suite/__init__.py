"""kafka-python's own integration tests."""
