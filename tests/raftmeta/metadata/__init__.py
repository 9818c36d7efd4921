"""Tests of the metadata image, of its publication and of its snapshots."""
