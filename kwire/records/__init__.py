"""Record batches: their header, what may be stored, how they are built and read.

The produce and fetch paths use :mod:`header`, :mod:`validate` and ``build.stamp`` only, which
never look behind the 61 bytes of a batch's header.  The rest is for tools, coordinators,
the metadata log and compaction.
"""
