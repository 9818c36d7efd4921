"""The life of a broker's log directories: loading, checkpoints, removals and a clean stop.

Rules of the package: a directory has its own tasks and threads, so that one that hangs holds up no
other. A log itself is the business of :mod:`kwire.log.partition_log`.
"""
