"""Compaction: rewrites a log's closed segments so that each key keeps its last record.

Rules of the package: a :class:`kwire.log.compaction.job.CleaningJob` describes a pass, and
:func:`kwire.log.compaction.clean.clean` does it. It reads segments, writes new files beside them
and changes no file of the log, so a pass can be abandoned at any time. Nothing here imports trio:
it runs in a thread or in a process of its own (:mod:`kwire.log.compaction.worker`).
"""
