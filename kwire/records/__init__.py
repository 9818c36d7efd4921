"""Record batches: their header, validation, building and reading.

The produce and fetch paths use only :mod:`header`, :mod:`validate` and ``build.stamp``, which never
read beyond the 61 bytes of a batch's header. The rest is for tools, coordinators, the metadata log
and compaction.
"""
