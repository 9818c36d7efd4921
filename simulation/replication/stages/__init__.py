"""Staged faults of each kind, and the scene on which they are played."""
