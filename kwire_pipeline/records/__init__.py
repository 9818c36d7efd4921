"""Records as frames: pure functions from DataFrame to DataFrame, without session or I/O."""
