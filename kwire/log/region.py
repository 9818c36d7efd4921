"""The result of a read: a range of a segment's file, readable until it is closed."""

from collections.abc import Callable
from typing import Final

from kwire.log.disk import Disk, File
from kwire.log.segments.segment import Segment


class FileRegion:
    """A range of a file, not read yet; ``len()`` is its size. The file is pinned until ``close``.

    ``is_cached`` returns whether a part of the file can be read without waiting for ``disk``;
    otherwise a thread of that directory has to read it. If the file turns out to be shorter than
    the range, the log was truncated meanwhile, and the announced bytes can no longer be sent.
    """

    __slots__ = ("_open", "_size", "disk", "file", "is_cached", "position")

    def __init__(
        self,
        file: File,
        position: int,
        size: int,
        is_cached: Callable[[int, int], bool],
        disk: Disk,
    ) -> None:
        self.disk = disk
        self.file = file
        self.position = position
        self.is_cached = is_cached
        self._size = size
        self._open = size > 0
        if self._open:
            file.pin()

    def __len__(self) -> int:
        return self._size

    def fileno(self) -> int:
        """Return the descriptor for ``sendfile``; -1 if there is none."""
        return self.file.fileno() if self._open else -1

    def read(self) -> bytes:
        """Read all bytes; fewer only after a truncation."""
        return self.file.read(self.position, self._size) if self._size else b""

    def narrow(self, position: int, size: int) -> None:
        """Keep only a part of the range."""
        assert self.position <= position, "the part must be inside the range"
        assert position + size <= self.position + self._size, "the part must be inside the range"
        self.position, self._size = position, size

    def close(self) -> None:
        if self._open:
            self._open = False
            self.file.unpin()

    def __enter__(self) -> "FileRegion":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _NoFile:
    """The file of an empty region, and its disk."""

    path = ""

    def fileno(self) -> int:
        return -1


def empty() -> FileRegion:
    """Return an empty region, as read at the end of the log."""
    return FileRegion(NO_FILE, 0, 0, lambda position, size: True, NO_FILE)  # type: ignore[arg-type]


def of_segment(
    segment: Segment, first: tuple[int, int], max_bytes: int, end: int, at_least_one: bool
) -> FileRegion:
    """Return up to ``max_bytes`` from the ``first`` batch (position, size), ending at ``end``.

    The region contains the whole first batch or nothing: a part of it is of no use to a reader, and
    a partition that got one would count as served. The last batch may be cut off.
    """
    position, first_size = first
    available = end - position
    size = min(max_bytes, available)
    if size < first_size <= available and at_least_one:
        size = first_size
    if size < first_size:
        return empty()
    return FileRegion(segment.file, position, size, segment.is_warm, segment.files.disk)


NO_FILE: Final = _NoFile()
