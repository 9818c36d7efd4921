"""Jobs of Apache Flink against a broker."""
