"""Clusters of several real processes: kwire's, and kwire's with Apache Kafka's."""
