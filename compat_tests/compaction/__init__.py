"""kwire's log compaction beside Apache Kafka's cleaner, on the same directories."""
