"""The simulation of the metadata quorum: raft, its storage, and faults of disks and networks."""
