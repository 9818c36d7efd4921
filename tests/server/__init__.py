"""Whole nodes in the test's own process."""
