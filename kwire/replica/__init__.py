"""Partitions: logs with a role, requests that wait for them, and followers' progress.

:mod:`leader`, :mod:`purgatory` and :mod:`fetch_sessions` are pure. :mod:`partition` joins a log
and a role and is synchronous; :mod:`service` owns the partitions of a broker and awaits.
"""
