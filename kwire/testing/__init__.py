"""A broker in its own process and a raw protocol client, for tests of Kafka applications."""
