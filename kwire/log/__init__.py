"""Kafka's segmented log on disk: files, segments, recovery and retention.

Rules of the package: :mod:`kwire.log.disk` alone touches files. :mod:`kwire.log.service` and the
tasks in :mod:`kwire.log.directories` alone await; everything else is synchronous and gets the time
as an argument.
"""
