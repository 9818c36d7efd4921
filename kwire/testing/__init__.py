"""A broker in a process of its own and a client of the wire, for tests of Kafka applications."""
