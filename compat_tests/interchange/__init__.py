"""Data directories of one server opened by the other: kwire's by Apache Kafka, and the reverse."""
