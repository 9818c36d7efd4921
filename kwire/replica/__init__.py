"""Partitions: a log with a role, who waits for what of it, and what followers have.

:mod:`leader`, :mod:`purgatory` and :mod:`fetch_sessions` are pure. :mod:`partition` joins a log
and a role and is synchronous; :mod:`service` owns the partitions of a broker and awaits.
"""
