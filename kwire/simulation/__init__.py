"""Deterministic worlds of raft, controllers, brokers, logs and networks, each from one seed."""
