"""The reads of a thread that bring into the page cache what a lookup needs (kwire.log.cold).

A job opens files of its own: the segment may be cut, removed or closed meanwhile.
"""

from kwire.log.cold import Job
from kwire.log.segments.segment import Segment


def lookups(segment: Segment, *offsets: int) -> Job:
    """Return a job that reads what :meth:`Segment.locate` of these offsets needs."""
    files = segment.files
    shadow = Segment(files.disk, files.directory, segment.base_offset, segment.written)
    starts = [segment.floor(o)[0] if segment.has_indexes else None for o in offsets]

    def read() -> None:
        try:
            for offset, start in zip(offsets, starts, strict=True):
                position = shadow.floor(offset)[0] if start is None else start
                for _, header in shadow.scan(position):
                    if header.last_offset >= offset:
                        break
        finally:
            shadow.file.close()

    return read
