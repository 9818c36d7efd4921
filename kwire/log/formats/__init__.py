"""Kafka's files as bytes: the names, the indexes and the small text files of a log directory.

Rules of the package: each module states one format, keeps no state and decides nothing. Values are
checked where they are read; the caller decides what damage means.
"""
