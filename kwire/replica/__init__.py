"""Partitions: logs with a role, requests that wait for them, and followers' progress.

:mod:`leader`, :mod:`byte_waits` and :mod:`fetch_sessions` are pure. :mod:`partition` joins a log
and a role and is synchronous. :mod:`hosted_partitions` holds a broker's partitions, which
:mod:`metadata_applier` creates and removes; :mod:`replicas` serves requests to them.
"""
