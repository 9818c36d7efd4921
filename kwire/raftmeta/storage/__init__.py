"""The metadata log on disk: records as bytes, snapshots, and the files of one raft node."""
