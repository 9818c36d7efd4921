"""Mistakes on purpose, by the part that makes them; :mod:`.table` has all."""
