"""Deliberate mistakes, grouped by the part that makes them; :mod:`.table` lists all."""
