"""Real clients, tools and the clients' own suites against kwire, and against Apache Kafka."""
