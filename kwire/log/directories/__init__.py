"""A broker's log directories and their tasks: checkpoints, flushes, retention, removals.

Rules of the package: each directory has its own tasks and threads, so that a directory that hangs
does not hold up the others. :mod:`kwire.log.partition_log` handles the log itself.
"""
