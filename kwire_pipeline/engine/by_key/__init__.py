"""Changes by key: the last one of a batch, changes that arrive late, and the proof of a table."""
