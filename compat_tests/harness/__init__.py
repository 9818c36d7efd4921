"""Shared parts of the compatibility tests: the broker under test, Java tools, small helpers."""
