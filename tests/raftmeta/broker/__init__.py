"""Tests of a broker's registration and lifecycle."""
