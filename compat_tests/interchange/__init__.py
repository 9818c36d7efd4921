"""Data directories that change hands: Apache Kafka opens kwire's, kwire opens Apache Kafka's."""
