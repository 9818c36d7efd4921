"""The metadata quorum: KRaft's consensus, the metadata log and what is built of it.

``raft/raft.py`` is the consensus as a stepper; :mod:`kwire.raftmeta.service` runs it on a disk and
a network, with the modules beside it: delivery to listeners, pending commits, calls of the disk,
requests to other nodes, snapshots.
"""
