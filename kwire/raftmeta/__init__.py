"""The metadata quorum: KRaft consensus, the metadata log and the state built from it.

``raft/raft.py`` implements the consensus as a stepper. :mod:`kwire.raftmeta.quorum` runs it with a
disk and a network; the modules beside it deliver records to listeners, track pending commits, call
the disk, send requests to other nodes and write snapshots.
"""
