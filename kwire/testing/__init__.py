"""Verified stand-ins for the outside world, shipped so that others can test with them too."""
