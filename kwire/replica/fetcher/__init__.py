"""The follower side of replication: fetches from leaders, truncation, fetch sessions."""
