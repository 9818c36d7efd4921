"""A broker's registration, heartbeats and shutdown: the broker's side of its session."""
