"""Tables in Iceberg, Delta or Parquet, each of which appends a batch exactly once."""
