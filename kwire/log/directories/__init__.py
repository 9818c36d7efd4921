"""A broker's log directories and their tasks: checkpoints, flushes, retention, removals.

Rules of the package: a directory has its own tasks and threads, so that one that hangs holds up no
other. A log itself is the business of :mod:`kwire.log.partition_log`.
"""
