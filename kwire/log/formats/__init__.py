"""The bytes of Kafka's files: the names, the indexes and the small text files of a log directory.

Rules of the package: each module defines one format, keeps no state and makes no decisions. Values
are checked where they are read; the caller decides what damage means.
"""
