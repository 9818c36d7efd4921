"""The metadata log on disk: records as bytes, snapshots, the files of one raft node."""
