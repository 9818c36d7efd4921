"""Kafka's segmented log on disk: files, segments, recovery and retention.

Rules of the package: :mod:`kwire.log.disk` alone touches files, :mod:`kwire.log.service` alone
awaits, everything between is synchronous and gets the time as an argument.
"""
