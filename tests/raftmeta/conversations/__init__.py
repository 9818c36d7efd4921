"""Replays of recorded conversations of Apache Kafka's nodes."""
