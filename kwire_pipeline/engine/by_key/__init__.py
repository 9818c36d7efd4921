"""Changes by key: the last of a batch, changes that arrive late, and the proof of a table."""
