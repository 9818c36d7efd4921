"""Kafka's segmented log on disk: files, segments, recovery and retention.

Rules of the package: only :mod:`kwire.log.disk` accesses files. Only :mod:`kwire.log.manager` and
the tasks in :mod:`kwire.log.directories` await; everything else is synchronous and gets the time as
an argument.
"""
