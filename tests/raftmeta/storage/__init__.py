"""Tests of the metadata log, quorum-state and snapshots on disk."""
