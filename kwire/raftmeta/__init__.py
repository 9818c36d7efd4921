"""The metadata quorum: KRaft's consensus, the metadata log and what is built of it.

``raft.py`` is the consensus as a stepper; :mod:`service` runs it on disk and network and is
the only module here that awaits.
"""
