"""One segment: a log file and its indexes.

Rules: batches are appended only to the active segment, whose newest index entries are in memory.
Its index files are completed when it is closed for good (roll, clean stop), because recovery
rebuilds the indexes of any segment that may hold unsynced data. The other segments' indexes stay on
disk (:mod:`kwire.log.segments.indexes`).

``size`` is the position of the next batch, ``written`` the end of what readers may see. They differ
only while a slow directory has queued writes.
"""

from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.log.cold_lookups import ReadAt, WouldWait, reader
from kwire.log.config import DEFAULTS, LogConfig
from kwire.log.disk import TEMPORARY, Disk, File
from kwire.log.disk_health import DiskErrorKind, classify, ignore_no_room
from kwire.log.formats import names
from kwire.log.segments.files import SegmentFiles
from kwire.log.segments.indexes import SegmentIndexes
from kwire.log.segments.reserved_space import ReservedSpace
from kwire.records.header import HEADER, HEADER_SIZE, LENGTH_END, BatchHeader, Buffer, crc_ok

if TYPE_CHECKING:
    from kwire.log.segments.append_limits import AppendLimits
    from kwire.log.segments.damage import Damage, DamagedRange

RECENT_MAX: Final = 512
"""The maximum number of newest batches whose positions are in memory, to avoid index lookups."""
STEP_BATCHES: Final = 20
"""The number of batches that a rebuild of indexes processes in one step."""
CHUNK: Final = 8 * 1024
WARM_TAIL: Final = 1 << 20
"""The number of bytes before the segment's end that are assumed to be in the page cache."""
UNKNOWN_TIMESTAMP: Final = -2
"""A segment's largest timestamp before it is looked up in the time index."""
INT32_MAX: Final = (1 << 31) - 1
_INDEX_STATE: Final = (
    "_recent_next",
    "_recent_position",
    "_since_index",
    "first_timestamp",
    "max_timestamp",
    "max_timestamp_offset",
)
"""The attributes, besides the indexes, that are computed from the batches."""


class WrongIndex(Exception):
    """The batches of a segment contradict its offset index."""


class SegmentCut(NamedTuple):
    """A planned cut of a segment, and the largest timestamp of the remaining batches."""

    position: int
    end_offset: int
    max_timestamp: int
    max_timestamp_offset: int


class Segment:
    """A stretch of the log that begins at ``base_offset``."""

    __slots__ = (
        "_recent_next",
        "_recent_position",
        "_since_index",
        "base_offset",
        "created_ms",
        "damage",
        "file",
        "files",
        "first_timestamp",
        "indexes",
        "interval",
        "last_offset_max",
        "limits",
        "max_timestamp",
        "max_timestamp_offset",
        "modified_ms",
        "repair",
        "roll_jitter_ms",
        "size",
        "space",
        "written",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, config: LogConfig = DEFAULTS
    ) -> None:
        self.base_offset = base_offset
        self.last_offset_max = base_offset + INT32_MAX
        """The largest possible offset in this segment: indexes store 31-bit relative offsets."""
        self.files = SegmentFiles(disk, directory, base_offset)
        self.file = self.files.open(names.LOG)
        self.space = ReservedSpace()
        self.indexes = SegmentIndexes(self.files)
        self.damage: Damage | tuple[()] = ()
        self.repair: Repair | None = None
        """The indexes built to replace wrong ones; dropped when the segment is cut."""
        self.limits: AppendLimits | None = None
        """The limits of usual appends; None if they must be computed again."""
        self.size = self.written = size
        self.interval = config.index_interval_bytes
        self.created_ms = self.modified_ms = 0
        self.roll_jitter_ms = 0
        """Drawn for each segment, so that a broker's logs do not all roll at the same time."""
        self.first_timestamp = -1
        """The first batch's largest timestamp, from which ``segment.ms`` counts; -1 if unknown."""
        self.max_timestamp = UNKNOWN_TIMESTAMP
        """The largest timestamp; -1 if no record has one."""
        self.max_timestamp_offset = base_offset
        self._since_index = 0
        """Bytes of batches since the last entry of the offset index."""
        self._recent_next, self._recent_position = array("q"), array("q")

    @property
    def has_indexes(self) -> bool:
        """True while the newest index entries are in memory: active, or recently closed."""
        return self.indexes.offsets is not None

    def mark_deleted(
        self, suffixes: Sequence[str], mark: str = names.DELETED, *, may_leave: bool = False
    ) -> list[str]:
        """Rename the existing files, the log file first, and return their new paths.

        Later reads use the new names. See :meth:`SegmentFiles.mark_deleted`.
        """
        suffixes = (*suffixes, *self.indexes.growing_suffixes)
        paths = self.files.mark_deleted(suffixes, mark, may_leave=may_leave)
        self.file.close()  # A file's space is freed when its last descriptor is closed.
        self.file.path = self.files.path(names.LOG)
        return paths

    def move(self, directory: str) -> None:
        """Update the paths after the partition's directory was renamed."""
        self.files.directory = directory
        self.file.path = self.files.path(names.LOG)

    # -- appending

    def create(self, now_ms: int) -> None:
        """Create the empty file, or empty an existing one."""
        self.file = self.files.open(names.LOG, create=True)
        if self.file.size():
            self.file.truncate(0)
        self.created_ms = self.modified_ms = now_ms
        self.max_timestamp = -1
        self.start_indexes()

    def start_indexes(self) -> None:
        """Start with empty indexes, for a new segment or a rebuild."""
        self.limits = None
        self.indexes.start()
        self._recent_next, self._recent_position = array("q"), array("q")
        self._since_index = 0
        self.max_timestamp = self.first_timestamp = -1
        self.max_timestamp_offset = self.base_offset

    def activate(self) -> None:
        """Prepare to append to the indexes; their existing entries stay on disk."""
        if self.indexes.offsets is None:
            self.largest_timestamp()
            self.indexes.load()

    def note(self, size: int, next_offset: int, timestamp: int, interval: int) -> None:
        """Account for a batch at the end, adding the index entries that Kafka adds."""
        position, last = self.size, next_offset - 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last
        if self._since_index > interval:
            base, latest = self.base_offset, self.max_timestamp_offset
            self.indexes.add(last - base, position, self.max_timestamp, latest - base)
            self._since_index = 0
        self._since_index += size
        if not position:
            self.first_timestamp = timestamp
        self._recent_next.append(next_offset)
        self._recent_position.append(position)
        if len(self._recent_next) > RECENT_MAX:
            del self._recent_next[: RECENT_MAX // 2], self._recent_position[: RECENT_MAX // 2]
        self.size = position + size

    def write(self, parts: Sequence[Buffer], uses_reserve: bool) -> None:
        """Write batches at the end; if the disk is full, remove what was partly written."""
        try:
            self.file.write(parts, self.size)
        except OSError as error:
            if classify(error) is not DiskErrorKind.NO_ROOM:
                raise
            self.file.truncate(self.size)
            self.space.reset()
            self.limits = None
            if not uses_reserve:
                raise
            self.file.write(parts, self.size)  # The disk has just released its reserve.

    # -- closing

    def close_indexes(self) -> None:
        """Append the last time index entry; only a reopened segment gets entries after it."""
        self.activate()
        if self.max_timestamp >= 0:
            relative = self.max_timestamp_offset - self.base_offset
            self.indexes.add_timestamp(self.max_timestamp, relative)

    def resume_indexes(self) -> None:
        """Add the last time index entry after a recovery, and restart the index interval."""
        self.close_indexes()
        self._since_index = 0

    def write_indexes(self) -> list[str]:
        """Write the indexes to disk and drop them; return the names of the files written."""
        if not self.has_indexes:
            return []
        self.write_index_files()
        self.drop_indexes()
        return [self.files.name(suffix) for suffix in names.SEGMENT_SUFFIXES[1:]]

    def write_index_files(self) -> None:
        """Write the indexes, and release the space that the log file reserved.

        May be called in a thread if the log file is pinned and nothing is appended or truncated.
        """
        self.indexes.write()
        if not self.space.is_trimmed:
            self.file.truncate(self.size)

    def drop_indexes(self) -> None:
        """Drop the indexes from memory; they must be on disk."""
        self.repair = self.limits = None
        self.space.reset()
        self.indexes.drop()
        self.forget_positions()

    def forget_positions(self) -> None:
        """Free the positions of the newest batches; lookups use the indexes instead."""
        self._recent_next, self._recent_position = array("q"), array("q")

    def reindex(self, *, wait: bool = True) -> None:
        """Rebuild the offset and time index from the batches, because the current ones are wrong.

        If ``wait`` is false, raise :class:`WouldWait` until a thread has built the new ones. After
        an error the old indexes stay, and the next search that finds them wrong retries.
        """
        repair = self.repair = self.repair or Repair(self)
        if not repair.is_complete:
            if not wait:
                raise WouldWait
            repair.build(self.file)
        self.repair = None
        repair.replace_indexes(self)

    def reindexing(self) -> Generator[None, None, None]:
        """Do the same as :meth:`reindex` in steps; nothing may change the segment meanwhile."""
        self.repair = Repair(self)
        yield from self.repair.building(self.file)
        self.reindex()

    def cut(self, cut: SegmentCut) -> None:
        """Discard the state of what a cut removes; the caller cuts the file."""
        position = cut.position
        self.repair = self.limits = None
        self.damage = self.damage and self.damage.before_cut(position)
        while self._recent_next and self._recent_next[-1] > cut.end_offset:
            self._recent_next.pop()
            self._recent_position.pop()
        self.indexes.aborted.truncate(cut.end_offset)
        self.size = position
        self.written = min(self.written, position)
        self.space.reset()
        self._since_index = 0
        self.max_timestamp = cut.max_timestamp
        self.max_timestamp_offset = cut.max_timestamp_offset
        if not position:
            self.first_timestamp = -1

    # -- reading

    def locate(self, offset: int, *, wait: bool = True) -> tuple[int, int] | None:
        """Return position and size of the first batch whose last offset is ``offset`` or higher.

        Return None if that batch is not written yet. Without ``wait``, raise :class:`WouldWait`
        instead of waiting for the disk. A known damaged range counts as one batch.
        """
        if self.damage and (damaged := self.damage.at_offset(offset)) is not None:
            return damaged.position, damaged.size
        ends = self._recent_next
        index = bisect_right(ends, offset)
        if index < len(ends) and (index or not self._recent_position[0]):
            position = self._recent_position[index]
            after = self._recent_position[index + 1] if index + 1 < len(ends) else self.size
            return position, after - position
        try:
            for position, header in self.scan_from_entry(*self.floor(offset, wait=wait), wait=wait):
                if header.base_offset + header.last_offset_delta >= offset:
                    return position, header.length + LENGTH_END
        except WrongIndex:
            if self.written == self.size:
                self.reindex(wait=wait)
                return self.locate(offset, wait=wait)
        return None  # The batch may not be written yet.

    def scan(
        self, position: int = 0, end: int | None = None, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch from ``position`` to ``end``, without damage.

        ``position`` must be the start of a batch. The default ``end`` is :attr:`written`.
        """
        end = self.written if end is None else end
        return _scan(reader(self.file, wait=wait), position, end, self.damage)

    def scan_from_entry(
        self, position: int, last_offset: int | None, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Do the same as :meth:`scan`, from the position of an index entry (see :meth:`floor`).

        Raises :class:`WrongIndex`.
        """
        return _check(self.scan(position, wait=wait), self.base_offset, last_offset)

    def is_warm(self, position: int, size: int) -> bool:
        """Return whether this range can be sent without waiting for the disk."""
        if self.has_indexes and position >= self.size - WARM_TAIL:
            return True
        return self.file.is_cached(position, size)

    def largest_timestamp(self, *, wait: bool = True) -> int:
        """Return the largest timestamp, or -1 without any; for ``wait`` see :meth:`reindex`."""
        if self.max_timestamp == UNKNOWN_TIMESTAMP and not take_largest_timestamp(self, wait=wait):
            self.reindex(wait=wait)
        return self.max_timestamp

    def load_first_timestamp(self) -> int:
        """Return the timestamp from which the age for ``segment.ms`` is measured; -1 if empty."""
        if self.first_timestamp < 0 < self.size:
            for _, header in islice(self.scan(), 1):
                self.first_timestamp = header.max_timestamp
        return self.first_timestamp

    def floor(self, offset: int, *, wait: bool = True) -> tuple[int, int | None]:
        """Return the position to scan from for ``offset``, and the last offset of the batch there.

        The last offset is None at the start of the file, and -1 if the index entry is out of range.
        """
        entry = self.indexes.floor(offset - self.base_offset, wait=wait)
        if entry is None:
            return 0, None
        relative, position = entry
        if not 0 < position < self.size:
            return 0, -1
        damaged = self.damage and self.damage.from_position(position)
        if damaged and damaged.position <= position:
            return damaged.end_position, None
        return position, self.base_offset + relative


def take_largest_timestamp(segment: Segment, *, wait: bool = True) -> bool:
    """Take the largest timestamp from the time index; return False if batches refute it.

    If ``wait`` is false, raise :class:`WouldWait` instead of waiting for the disk.
    """
    largest, relative = segment.indexes.last_timestamp(wait=wait)
    largest_offset = segment.base_offset + relative
    if is_refuted(segment, largest, largest_offset, wait=wait):
        return False
    segment.max_timestamp, segment.max_timestamp_offset = largest, largest_offset
    return True


def is_refuted(segment: Segment, largest: int, largest_offset: int, *, wait: bool = True) -> bool:
    """Return whether batches refute that a segment's largest timestamp is ``largest``.

    Two places are looked at: the batch with ``largest_offset``, which must have this timestamp, and
    the batches after the last entry of the offset index, which must not have a larger one or end
    before ``largest_offset``. Damaged batches and those of old formats refute nothing. If ``wait``
    is false, raise :class:`WouldWait` instead of waiting for the disk.
    """
    if segment.damage:
        return False
    with suppress(FileNotFoundError, WrongIndex):  # The segment was removed, or has a wrong index.
        if largest >= 0:
            start = segment.floor(largest_offset, wait=wait)
            for position, header in segment.scan_from_entry(*start, wait=wait):
                if header.last_offset >= largest_offset:
                    is_other = header.base_offset <= largest_offset and (
                        header.max_timestamp != largest
                    )
                    if is_other and _is_intact(segment, position, header, wait=wait):
                        return True
                    break
        last, end_offset = None, segment.base_offset
        start = segment.floor(segment.last_offset_max, wait=wait)
        for position, header in segment.scan_from_entry(*start, wait=wait):
            if not header.can_follow(end_offset):
                return False  # The checksum does not cover the base offset.
            if header.max_timestamp > largest and _is_intact(segment, position, header, wait=wait):
                return True
            last, end_offset = (position, header), header.next_offset
        if last is not None and largest >= 0 and largest_offset >= end_offset:
            position, header = last
            is_whole = position + header.size == segment.written
            return is_whole and _is_intact(segment, position, header, wait=wait)
    return False


def _is_intact(segment: Segment, position: int, header: BatchHeader, *, wait: bool) -> bool:
    if header.magic != 2 or position + header.size > segment.written:
        return False
    data = reader(segment.file, wait=wait)(position, header.size)
    return len(data) == header.size and crc_ok(data, 0, header)


def plan_cut(segment: Segment, position: int, end_offset: int) -> SegmentCut:
    """Plan to cut at ``position``, the start of the batch that contains ``end_offset``.

    All reads of files happen here, so that an error leaves the segment's size unchanged. In that
    case the offset index may lack its last entries, which only makes searches slower; the aborted
    transactions are all there.
    """
    segment.activate()
    segment.indexes.truncate(end_offset, end_offset - segment.base_offset, position)
    largest, relative = segment.indexes.last_timestamp()
    largest_offset = segment.base_offset + relative
    for _, header in segment.scan(segment.floor(end_offset)[0], min(position, segment.written)):
        if header.max_timestamp > largest:  # The time index lacks the last batches.
            largest, largest_offset = header.max_timestamp, header.last_offset
    return SegmentCut(position, end_offset, largest, largest_offset)


class Repair:
    """The offset and time index of a segment, built in a thread to replace wrong ones.

    Several threads may build them at the same time; the first result is used.
    """

    __slots__ = (
        "_builds",
        "_damage",
        "_end",
        "_files",
        "_interval",
        "_is_active",
        "_numbers",
        "_start",
    )

    def __init__(self, segment: Segment) -> None:
        self._files = segment.files
        self._start, self._end = segment.base_offset, segment.written
        self._interval, self._damage = segment.interval, segment.damage
        self._is_active = segment.has_indexes
        self._numbers = count()
        """A number for each build, so that no two threads write the same file."""
        self._builds: list[tuple[Segment, dict[str, str]]] = []
        """The results: a copy of the segment, up to its end at the start of the repair, whose
        indexes are in memory, and the new files, by suffix; none if they are not on disk."""

    @property
    def is_complete(self) -> bool:
        """True once a thread has built the indexes."""
        return bool(self._builds)

    def build(self, file: File | None = None) -> None:
        """Build the indexes, unless already built, from ``file`` or a newly opened log file."""
        for _ in self.building(file):
            pass

    def building(self, file: File | None = None) -> Generator[None, None, None]:
        """Do the same as :meth:`build` in steps of a few batches."""
        if self._builds:
            return
        files = self._files
        built = Segment(files.disk, files.directory, self._start, self._end)
        built.interval, built.damage = self._interval, self._damage
        built.start_indexes()
        own = files.open_now(names.LOG) if file is None else None
        built.file = file or own or built.file
        try:
            yield from _noting_batches(built, built.scan())
        finally:
            if own is not None:
                own.unpin()
                own.close()
        built.close_indexes()
        written: dict[str, str] = {}
        if not self._is_active and not files.is_removed:
            number = next(self._numbers)
            offsets, times, _ = built.indexes.data()
            with ignore_no_room():
                for suffix, data in ((names.INDEX, offsets), (names.TIME_INDEX, times)):
                    path = self._temporary(suffix, number)
                    files.disk.write(path, data)
                    files.disk.sync(path)
                    written[suffix] = path
                    yield
        result = built, written if len(written) == 2 else {}
        self._builds.append(result)
        if self._builds[0] is not result:
            _remove(files.disk, written)

    def replace_indexes(self, segment: Segment) -> None:
        """Replace the segment's indexes: on disk by a rename, or in memory.

        In memory, the batches appended since the repair began are added. A removed segment gets its
        indexes in memory, because another segment may now use the names of its files.
        """
        built, written = self._builds[0]
        if written and segment.files.is_removed:
            self.discard()
        elif written and not segment.has_indexes:
            segment.indexes.forget_page()
            for suffix, path in written.items():
                segment.files.disk.rename(path, segment.files.path(suffix))
            segment.max_timestamp = built.max_timestamp
            segment.max_timestamp_offset = built.max_timestamp_offset
            return
        for _ in _noting_batches(built, segment.scan(built.size)):
            pass
        built.close_indexes()
        segment.indexes.adopt(built.indexes)
        segment.limits = None
        for name in _INDEX_STATE:
            setattr(segment, name, getattr(built, name))

    def discard(self) -> None:
        """Remove the new files, because they are not used."""
        for _, written in self._builds:
            _remove(self._files.disk, written)

    def _temporary(self, suffix: str, number: int) -> str:
        """Return the path of a new index file before its rename; a cut changes the path."""
        return self._files.unmarked_path(f"{suffix}.{self._end}.{number}{TEMPORARY}")


def _remove(disk: Disk, files: dict[str, str]) -> None:
    for path in files.values():
        disk.remove(path)


def _noting_batches(
    segment: Segment, batches: Iterator[tuple[int, BatchHeader]]
) -> Generator[None, None, None]:
    """Account for batches that are already in the segment's file.

    A batch whose offsets are damaged has no place in an index: they may not even fit.
    """
    for number, (position, header) in enumerate(batches, 1):
        segment.size = position
        last = header.last_offset
        if segment.base_offset <= header.base_offset <= last <= segment.last_offset_max:
            segment.note(header.size, header.next_offset, header.max_timestamp, segment.interval)
        if not number % STEP_BATCHES:
            yield


def end_before(segment: Segment, position: int, *, wait: bool = True) -> int | None:
    """Return an offset above all batches before ``position``; None without an index entry.

    The offset is too high by less than two index intervals. If ``wait`` is false, raise
    :class:`WouldWait` instead of waiting for the disk.
    """
    entry = segment.indexes.at_position(position, wait=wait)
    if entry is None:
        return None
    last_offset = segment.base_offset + entry[0]
    header = segment.scan(entry[1], entry[1] + HEADER_SIZE, wait=wait)
    with suppress(WrongIndex):
        for _ in _check(header, segment.base_offset, last_offset):
            return last_offset + 1
    return None


def _check(
    batches: Iterator[tuple[int, BatchHeader]], base_offset: int, last_offset: int | None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield batches from an index entry's position onwards; raise if they contradict the entry.

    ``last_offset``, the entry's offset, may belong to a batch after the first one: up to 4.0.0,
    Kafka wrote one entry per append, and an append may have several batches.
    """
    if last_offset is None:
        yield from batches
        return
    for position, header in batches:
        last = header.last_offset
        is_inside = base_offset <= header.base_offset <= last <= last_offset
        if header.magic != 2 or not is_inside:
            break
        yield position, header
        if last == last_offset:
            yield from batches
            return
    raise WrongIndex(base_offset)


def _scan(
    read: ReadAt, position: int, end: int, ranges: "Sequence[DamagedRange]" = ()
) -> Iterator[tuple[int, BatchHeader]]:
    for damaged in ranges:
        if position < damaged.end_position:
            yield from _scan(read, position, min(end, damaged.position))
            position = damaged.end_position
    chunk: Buffer = b""
    start = position
    while position + HEADER_SIZE <= end:
        if position + HEADER_SIZE > start + len(chunk):
            start = position
            chunk = read(position, min(CHUNK, end - position))
            if len(chunk) < HEADER_SIZE:
                return
        header = BatchHeader._make(HEADER.unpack_from(chunk, position - start))
        if header.length < HEADER_SIZE - LENGTH_END:
            return
        yield position, header
        position += header.length + LENGTH_END
