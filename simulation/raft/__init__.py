"""The simulation of the metadata quorum: raft, its storage, and disk and network faults."""
