"""Records as frames: pure functions from DataFrame to DataFrame, without a session and I/O."""
