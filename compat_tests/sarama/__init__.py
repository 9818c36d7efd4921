"""sarama's own functional tests, against five brokers behind toxiproxy."""
