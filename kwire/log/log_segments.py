"""The list of a log's segments.

Rules: segments are ordered by base offset and do not overlap; only the last one is appended to.
This module decides when a new segment begins, and at which offset. Compaction may leave gaps. Disk
errors are raised unchanged.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, overload

from kwire.errors import CorruptMessage
from kwire.log import region
from kwire.log.cold_lookups import WouldWait
from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.formats import names, offset_index, time_index
from kwire.log.region import FileRegion
from kwire.log.segments import warming
from kwire.log.segments.segment import INT32_MAX, Segment, end_before
from kwire.records.header import BatchHeader

MAX_OFFSET: Final = (1 << 63) - 1
_OFFSET_SIZE: Final = offset_index.ENTRY_SIZE
_TIME_SIZE: Final = time_index.ENTRY_SIZE


def _zero(limit: int) -> int:
    return 0


def following_base(end_offset: int, header: BatchHeader) -> int:
    """Return the base offset of a new segment whose first batch has this ``header``.

    The log ends at ``end_offset``, and the segment begins there even if the batch starts higher, so
    that a gap between two segments means that the end of the first one was lost. The exception is a
    gap that is too wide for a segment's indexes.
    """
    is_too_wide = header.last_offset - end_offset > INT32_MAX
    return header.base_offset if is_too_wide else end_offset


class LogSegments(Sequence[Segment]):
    """The segments of one log, in a directory that may be renamed."""

    __slots__ = (
        "_last_read",
        "active",
        "directory",
        "disk",
        "ordered",
        "random_below",
        "replacements",
    )

    active: Segment
    """The last segment; it exists as soon as a log is created or opened."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.disk = disk
        self.directory = directory
        self.ordered: list[Segment] = []
        self.replacements = 0
        """The number of times that segments were replaced by others with fewer batches."""
        self._last_read: Segment | None = None
        """The segment of the last read: only its index keeps a page, to bound the memory."""
        self.random_below: Callable[[int], int] = _zero
        """The source of the jitter of new segments."""

    def __len__(self) -> int:
        return len(self.ordered)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self.ordered[index]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.ordered)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.ordered)

    # -- changing the list

    def add(self, segment: Segment) -> None:
        """Append a segment with the largest base offset, which becomes the active segment."""
        self.ordered.append(segment)
        self.active = segment

    def should_roll(
        self, size: int, last_offset: int, timestamp: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Return whether a batch needs a new segment, because the active one is too full or old.

        ``size`` and ``last_offset`` are the batch's, ``timestamp`` is its largest timestamp.
        """
        active = self.active
        indexes = active.indexes
        offsets, times = indexes.offsets, indexes.times
        if offsets is None or times is None:
            active.activate()
            return self.should_roll(size, last_offset, timestamp, now_ms, config)
        index_bytes = config.segment_index_bytes
        if (
            active.size + size > config.segment_bytes
            or last_offset > active.last_offset_max
            or offsets.size > index_bytes - _OFFSET_SIZE
            or times.size > index_bytes - 2 * _TIME_SIZE
        ):
            return True
        if not active.size:
            return False
        first = active.first_timestamp
        if first < 0:
            first = active.load_first_timestamp()
        age = timestamp - first if first >= 0 else now_ms - active.created_ms
        return age > config.max_segment_ms - active.roll_jitter_ms

    def begin(self, base_offset: int, now_ms: int, config: LogConfig) -> Segment:
        """Create an empty segment, which becomes the active segment."""
        segment = Segment(self.disk, self.directory, base_offset, 0, config)
        try:
            segment.create(now_ms)
            if config.preallocate:
                segment.space.extend(segment.file, 0, 0, config)
        except OSError:  # The next attempt may have another base offset.
            segment.file.close()
            with suppress(OSError):
                segment.files.remove(names.LOG)
            raise
        segment.roll_jitter_ms = config.roll_jitter_ms(self.random_below)
        self.add(segment)
        return segment

    def replace(self, replaced: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Replace neighbouring segments by new ones; the active segment is never replaced."""
        first = self.ordered.index(replaced[0])
        stop = first + len(replaced)
        assert self.ordered[first:stop] == list(replaced), "the segments have changed"
        assert stop < len(self.ordered), "the active segment is never replaced"
        self.ordered[first:stop] = new
        self.replacements += 1

    def take_oldest(self) -> None:
        """Remove the oldest segment from the list; its files stay."""
        self.ordered = self.ordered[1:]

    def take_from(self, index: int) -> list[Segment]:
        """Remove the segments from ``index`` onwards from the list; their files stay."""
        removed, self.ordered = self.ordered[index:], self.ordered[:index]
        if self.ordered:
            self.active = self.ordered[-1]
        return removed

    def remove(self, segment: Segment) -> None:
        """Remove a segment's files, and the segment from the list if it is listed."""
        segment.file.close()
        segment.files.remove(*names.SEGMENT_SUFFIXES, *segment.indexes.growing_suffixes)
        if segment in self.ordered:
            self.ordered.remove(segment)

    def release(self) -> None:
        """Close the files without writing anything."""
        for segment in self.ordered:
            segment.file.close()

    def move(self, directory: str) -> None:
        """Update the paths after the directory was renamed."""
        self.directory = directory
        for segment in self.ordered:
            segment.move(directory)

    # -- looking up

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that contains ``offset``."""
        if offset >= self.active.base_offset:
            return len(self.ordered) - 1
        following = bisect_right(self.ordered, offset, key=lambda segment: segment.base_offset)
        return max(following - 1, 0)

    def last_below(self, end_offset: int) -> int:
        """Return the index of the last segment after a cut at ``end_offset``."""
        last = self.index_of(end_offset)
        return last - 1 if last and self.ordered[last].base_offset == end_offset else last

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        written_offset: int,
        at_least_one: bool,
        wait: bool,
    ) -> FileRegion:
        """Return the bytes from the batch that contains ``offset``, wholly below ``end_offset``.

        The readable batches of the log end at ``written_offset``; ``end_offset`` is not above it.
        With ``at_least_one`` the first batch is returned even if it is larger than ``max_bytes``.
        If ``wait`` is false, raises :class:`WouldWait` if finding the bytes would wait for the
        disk. The bytes end before a known damaged range; a read that would begin in one raises
        CorruptMessage or KafkaStorageError.
        """
        index, ordered = self.index_of(offset), self.ordered
        while offset < end_offset and index < len(ordered):
            segment = ordered[index]
            if segment is not self._last_read:
                if self._last_read is not None:
                    self._last_read.indexes.forget_page()
                self._last_read = segment
            try:
                first = segment.locate(offset, wait=wait)
                if first is not None:
                    end = segment.written
                    if end_offset != written_offset and (
                        segment is self.active or ordered[index + 1].base_offset > end_offset
                    ):
                        following = segment.locate(end_offset, wait=wait)
                        end = end if following is None else min(end, following[0])
                    if segment.damage:
                        end = _intact_end(segment, first[0], end)
                    return region.of_segment(segment, first, max_bytes, end, at_least_one)
                _check_rest(segment, offset, wait=wait)
            except WouldWait as cold:
                cold.disk, cold.job = self.disk, warming.lookups(segment, offset, end_offset)
                raise
            index += 1  # Compaction removed the rest of this segment.
        return region.empty()

    def batches_from(self, offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Yield segment, position and header of every batch that ends past ``offset``."""
        for index, segment in enumerate(self.ordered):
            following = self.ordered[index + 1 : index + 2]
            if following and following[0].base_offset <= offset:
                continue
            first = segment.locate(offset) if offset > segment.base_offset else (0, 0)
            if first is None:
                continue
            for position, header in segment.scan(first[0]):
                yield segment, position, header

    def scan_region(
        self, offset: int, region: FileRegion, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch of a region that was read from ``offset``.

        If ``wait`` is false, raise :class:`WouldWait` instead of waiting for the disk.
        """
        end = region.position + len(region)
        for segment in self.ordered[self.index_of(offset) :]:
            if segment.file is region.file:
                try:
                    yield from segment.scan(region.position, end, wait=wait)
                except WouldWait as cold:
                    cold.disk, cold.job = self.disk, warming.headers(segment, region.position, end)
                    raise
                return

    def end_of_region(self, start_offset: int, region: FileRegion, *, wait: bool = True) -> int:
        """Return an offset at or above all batches of a region that begins at ``start_offset``.

        It comes from :func:`end_before`, or is the next segment's base offset if that has no entry.
        """
        for index in range(self.index_of(start_offset), len(self.ordered)):
            segment = self.ordered[index]
            if segment.file is region.file:
                end_position = region.position + len(region)
                try:
                    end_offset = end_before(segment, end_position, wait=wait)
                except WouldWait as cold:
                    cold.disk, cold.job = self.disk, warming.end_before(segment, end_position)
                    raise
                if end_offset is not None:
                    return end_offset
                if index + 1 < len(self.ordered):
                    return self.ordered[index + 1].base_offset
        return MAX_OFFSET


def _intact_end(segment: Segment, position: int, end: int) -> int:
    """Return the end of the intact bytes from ``position`` to at most ``end``.

    Raises CorruptMessage or KafkaStorageError if there are none.
    """
    damaged = segment.damage and segment.damage.from_position(position)
    if not damaged:
        return end
    if damaged.position <= position:
        raise damaged.error()
    return min(end, damaged.position)


def _check_rest(segment: Segment, offset: int, *, wait: bool) -> None:
    """Raise CorruptMessage if the batches from ``offset`` onwards do not fill the segment.

    Without this check, a damaged length would hide the rest of the segment from consumers, as if
    compaction had removed it.
    """
    end = segment.floor(offset, wait=wait)[0]
    for position, header in segment.scan(end, wait=wait):
        end = position + header.size
    damaged = segment.damage and segment.damage.from_position(end)
    if end < segment.written and not damaged:
        raise CorruptMessage(f"no batch at position {end} of the segment {segment.base_offset}")
