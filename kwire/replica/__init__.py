"""Partitions: logs with a role, requests that wait for them, and followers' progress.

:mod:`leader`, :mod:`byte_waits` and :mod:`fetch_sessions` are pure. :mod:`partition` joins a log
and a role and is synchronous. :mod:`hosted_partitions` has the partitions of a broker, which
:mod:`metadata_applier` creates and removes; :mod:`service` serves requests to them.
"""
