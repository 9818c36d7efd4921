"""librdkafka's own tests."""
