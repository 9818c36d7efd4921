"""The tests that franz-go's simulated cluster shares with Apache Kafka, against real brokers."""
