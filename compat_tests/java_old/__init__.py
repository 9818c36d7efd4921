"""Apache's older Java clients, Kafka Streams and Kafka Connect."""
