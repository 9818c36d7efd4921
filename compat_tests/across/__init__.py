"""Compatibility scenarios in which one client writes what the others read."""
