"""Tests of the active controller: its decisions, its records and its responses."""
