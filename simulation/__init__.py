"""Deterministic simulations of raft, controllers, brokers, logs and networks, from one seed."""
