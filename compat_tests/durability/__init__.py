"""Tests of durability when the server is killed, stopped or frozen in the middle of its work."""
