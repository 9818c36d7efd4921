"""Real clients, tools and other people's suites against kwire, and against Apache Kafka itself."""
