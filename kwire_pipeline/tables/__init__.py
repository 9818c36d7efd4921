"""Tables in Iceberg, Delta or Parquet; each format appends a batch exactly once."""
