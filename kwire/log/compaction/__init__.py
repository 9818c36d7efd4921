"""Compaction: rewrites a log's closed segments to keep only the last record of each key.

Rules of the package: a :class:`kwire.log.compaction.job.CleaningJob` describes a pass, and
:func:`kwire.log.compaction.clean.clean` runs it. The pass reads segments, writes new files beside
them and changes no file of the log, so it can be abandoned at any time. Nothing here imports trio:
it runs in a thread or in its own process (:mod:`kwire.log.compaction.worker`).
"""
