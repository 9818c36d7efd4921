"""One segment: a log file and its three indexes.

Rules: only the active segment is appended to, and its indexes are in memory. They are written when
it is closed for good (roll, clean stop), because recovery rebuilds them for any segment that may
hold unsynced data. The other segments' indexes stay on disk and are searched there.

``size`` is the position of the next batch, ``written`` the end of what readers may see. They differ
only while a slow directory writes behind.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kwire.log.cold import Job, reader
from kwire.log.config import DEFAULTS, LogConfig
from kwire.log.disk import Disk
from kwire.log.formats import names, offset_index, time_index, txn_index
from kwire.log.formats.txn_index import Aborted
from kwire.log.trouble import Trouble, if_room, trouble
from kwire.records.header import HEADER, HEADER_SIZE, LENGTH_END, BatchHeader, Buffer

RECENT_MAX: Final = 512
"""Batches at the end whose positions are kept in memory, so that they need no index lookup."""
CHUNK: Final = 8 * 1024
ALLOCATE_FROM: Final = 1 << 20
"""Smaller files are not allocated ahead: thousands of idle partitions would fill the disk."""
ALLOCATE_STEP: Final = 16 << 20
WARM_TAIL: Final = 1 << 20
"""The last bytes appended, which are assumed to be in the page cache."""
INT32_MAX: Final = (1 << 31) - 1


class Segment:
    """A stretch of the log that begins at ``base_offset``."""

    __slots__ = (
        "_disk",
        "_index",
        "_recent_next",
        "_recent_position",
        "_since_index",
        "_time_index",
        "_trim",
        "_txns",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "first_timestamp",
        "interval",
        "max_timestamp",
        "max_timestamp_offset",
        "modified_ms",
        "reserved",
        "size",
        "written",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, config: LogConfig = DEFAULTS
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.file = disk.open(f"{directory}/{names.stem(base_offset)}{names.LOG}")
        self.size = size
        self.written = size
        self.interval = config.index_interval_bytes
        self.created_ms = 0
        self.modified_ms = 0
        self.first_timestamp = -1
        """The first batch's largest timestamp, the start of ``segment.ms``; -1 if not known."""
        self.max_timestamp = -2
        """-2 until looked up in the time index, -1 when no record has a timestamp."""
        self.max_timestamp_offset = base_offset
        self._index: bytearray | None = None
        self._time_index: bytearray | None = None
        self._txns: list[Aborted] | None = None
        self._since_index = 0
        self.reserved = ALLOCATE_FROM
        """The position up to which a write needs no call of :meth:`allocate`."""
        self._trim = False
        self._recent_next = array("q")
        self._recent_position = array("q")

    def name(self, suffix: str) -> str:
        """Return the name of one of the segment's files in the partition's directory."""
        return f"{names.stem(self.base_offset)}{suffix}"

    def path(self, suffix: str) -> str:
        """Return the path of one of the segment's files."""
        return f"{self.directory}/{names.stem(self.base_offset)}{suffix}"

    @property
    def has_indexes(self) -> bool:
        """Whether the indexes are in memory: the segment is active or was just closed."""
        return self._index is not None

    def mark_deleted(self, suffixes: Sequence[str]) -> list[str]:
        """Rename the existing files; return their new paths."""
        self.file.close()  # A file's space is freed when its last descriptor is closed.
        paths = []
        for suffix in suffixes:
            path = self.path(suffix)
            try:
                self._disk.rename(path, path + names.DELETED)
            except FileNotFoundError:
                continue
            paths.append(path + names.DELETED)
        self.file.path = self.path(names.LOG) + names.DELETED
        return paths

    def move(self, directory: str) -> None:
        """Follow a rename of the partition's directory."""
        self.directory = directory
        self.file.path = self.path(names.LOG)

    # -- appending

    def create(self, now_ms: int) -> None:
        """Create the empty file, replacing an existing one's content."""
        self.file = self._disk.open(self.path(names.LOG), create=True)
        if self.file.size():
            self.file.truncate(0)
        self.created_ms = self.modified_ms = now_ms
        self.max_timestamp = -1
        self.start_indexes()

    def start_indexes(self) -> None:
        """Begin with empty indexes in memory: a new segment, or one to be rebuilt."""
        self._index, self._time_index, self._txns = bytearray(), bytearray(), []
        self._recent_next, self._recent_position = array("q"), array("q")
        self._since_index = 0
        self.max_timestamp = self.first_timestamp = -1
        self.max_timestamp_offset = self.base_offset

    def activate(self) -> None:
        """Load the indexes into memory to append to them."""
        if self._index is None:
            self.largest_timestamp()
            self._txns = self.aborted()
            index, time = self._read(names.INDEX), self._read(names.TIME_INDEX)
            self._index, self._time_index = bytearray(index), bytearray(time)

    def room_for(self, size: int, last_offset: int, config: LogConfig) -> bool:
        """Whether a batch still fits into this segment; the caller checks the segment's age."""
        index, times = self._index, self._time_index
        if index is None or times is None:
            self.activate()
            return self.room_for(size, last_offset, config)
        entries_max = config.segment_index_bytes // time_index.ENTRY_SIZE
        return (
            self.size + size <= config.segment_bytes
            and last_offset - self.base_offset <= INT32_MAX
            and len(index) <= config.segment_index_bytes - offset_index.ENTRY_SIZE
            and len(times) < (entries_max - 1) * time_index.ENTRY_SIZE
        )

    def note(self, size: int, next_offset: int, timestamp: int, interval: int) -> None:
        """Account for a batch at the end, with the index entries that Kafka adds."""
        position, last = self.size, next_offset - 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last
        if self._since_index > interval:
            self._add_entries(last - self.base_offset, position)
        self._since_index += size
        if not position:
            self.first_timestamp = timestamp
        self._recent_next.append(next_offset)
        self._recent_position.append(position)
        if len(self._recent_next) > RECENT_MAX:
            del self._recent_next[: RECENT_MAX // 2], self._recent_position[: RECENT_MAX // 2]
        self.size = position + size

    def note_aborted(self, entry: Aborted) -> None:
        self.activate()
        assert self._txns is not None
        self._txns.append(entry)

    def forget_aborted(self) -> None:
        """Drop the aborted transactions, which are about to be noted again."""
        self.activate()
        self._txns = []

    def allocate(self, size: int, config: LogConfig) -> None:
        """Reserve space for ``size`` more bytes; space that was not reserved costs a multiple."""
        end = self.size + size
        if config.preallocate:
            wanted = max(config.segment_bytes, end)
        else:
            wanted = max(min(self.size + min(ALLOCATE_STEP, self.size), config.segment_bytes), end)
        if wanted > ALLOCATE_FROM or config.preallocate:
            self.file.allocate(self.size, wanted - self.size)
            self.reserved = wanted
            self._trim = True

    def write(self, parts: Sequence[Buffer], uses_reserve: bool) -> None:
        """Write a batch after the last one; if the disk is full, remove what was written of it."""
        try:
            self.file.write(parts, self.size)
        except OSError as error:
            if trouble(error) is not Trouble.NO_ROOM:
                raise
            self.file.truncate(self.size)
            self.reserved, self._trim = ALLOCATE_FROM, False
            if not uses_reserve:
                raise
            self.file.write(parts, self.size)  # The disk has released its reserve.

    # -- closing

    def close_indexes(self) -> None:
        """Append the last time index entry, which only a restart follows with another."""
        self.activate()
        assert self._time_index is not None
        if self.max_timestamp >= 0:
            offset = self.max_timestamp_offset - self.base_offset
            time_index.maybe_append(self._time_index, self.max_timestamp, offset)

    def resume_indexes(self) -> None:
        """Add the last entry after a recovery and restart the interval of index entries."""
        self.close_indexes()
        self._since_index = 0

    def write_indexes(self) -> list[str]:
        """Write the indexes to disk and drop them; return the names of the files written."""
        if not self.has_indexes:
            return []
        self.write_index_files()
        self.drop_indexes()
        return [self.name(suffix) for suffix in names.SEGMENT_SUFFIXES[1:]]

    def write_index_files(self) -> None:
        """Write the indexes, and release the space that the log file reserved.

        Nothing in memory changes: a thread may do it, with the log file pinned, as long as nothing
        is appended or cut off.
        """
        assert self._index is not None
        assert self._time_index is not None
        self._disk.write(self.path(names.INDEX), self._index)
        self._disk.write(self.path(names.TIME_INDEX), self._time_index)
        if self._txns:
            packed = b"".join(map(txn_index.pack, self._txns))
            self._disk.write(self.path(names.TXN_INDEX), packed)
        else:
            self._disk.remove(self.path(names.TXN_INDEX))
        if self._trim:
            self.file.truncate(self.size)

    def drop_indexes(self) -> None:
        """Drop the indexes from memory; they are on disk."""
        self._trim = False
        self.reserved = ALLOCATE_FROM
        self._index = self._time_index = self._txns = None
        self._recent_next, self._recent_position = array("q"), array("q")

    def reindex(self) -> None:
        """Rebuild offset and time index from the batches, because the old ones are wrong."""
        active, self._txns, txns = self._index is not None, None, self.aborted()
        end = self.written
        self.start_indexes()
        self._txns, self.size = txns, 0
        for position, header in self.scan(0, end):
            self.size = position
            self.note(header.size, header.next_offset, header.max_timestamp, self.interval)
        self.size = end
        self.close_indexes()
        if not active:
            with if_room():
                self.write_indexes()

    def truncate(self, position: int, end_offset: int) -> None:
        """Cut at ``position``, where the batch that held ``end_offset`` began."""
        self.activate()
        assert self._index is not None
        assert self._time_index is not None
        relative = end_offset - self.base_offset
        offset_index.keep_below(self._index, relative, position)
        time_index.keep_below(self._time_index, relative)
        self._txns = [entry for entry in self.aborted() if entry.last_offset < end_offset]
        while self._recent_next and self._recent_next[-1] > end_offset:
            self._recent_next.pop()
            self._recent_position.pop()
        self.size = position
        self.written = min(self.written, position)
        self.reserved, self._trim = ALLOCATE_FROM, False
        self._since_index = 0
        self.max_timestamp, relative = time_index.last(self._time_index)
        self.max_timestamp_offset = self.base_offset + relative
        for _, header in self.scan(self.floor(end_offset)[0], min(position, self.written)):
            if header.max_timestamp > self.max_timestamp:  # after the last index entry
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
        if not position:
            self.first_timestamp = -1

    # -- reading

    def locate(self, offset: int, *, wait: bool = True) -> tuple[int, int] | None:
        """Return position and size of the first batch that ends past ``offset``.

        Without ``wait`` it raises :class:`WouldWait` rather than wait for the disk.
        """
        ends = self._recent_next
        place = bisect_right(ends, offset)
        if place < len(ends) and (place or not self._recent_position[0]):
            position = self._recent_position[place]
            following = place + 1
            after = self._recent_position[following] if following < len(ends) else self.size
            return position, after - position
        start, last_offset = self.floor(offset, wait=wait)
        sound = last_offset is None
        for position, header in self.scan(start, wait=wait):
            last = header.base_offset + header.last_offset_delta
            sound = sound or last == last_offset
            if not sound:
                break
            if last >= offset:
                return position, header.length + LENGTH_END
        if sound or self.written < self.size:  # The batch may still wait to be written.
            return None
        self.reindex()
        return self.locate(offset)

    def warming(self, *offsets: int) -> Job:
        """Return a job for a thread that reads what :meth:`locate` of these offsets needs.

        It uses a file handle of its own: this segment may be cut, removed or closed meanwhile.
        """
        shadow = Segment(self._disk, self.directory, self.base_offset, self.written)
        starts = [self.floor(o)[0] if self.has_indexes else None for o in offsets]

        def read() -> None:
            try:
                for offset, start in zip(offsets, starts, strict=True):
                    at = shadow.floor(offset)[0] if start is None else start
                    for _, header in shadow.scan(at):
                        if header.last_offset >= offset:
                            break
            finally:
                shadow.file.close()

        return read

    def scan(
        self, position: int = 0, end: int | None = None, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch from ``position``, a batch's start, to ``end``.

        By default it ends where readers may see no more.
        """
        end = self.written if end is None else end
        read = reader(self.file, wait=wait)
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

    def is_warm(self, position: int, size: int) -> bool:
        """Whether this range can be sent without waiting for the disk."""
        return (self._index is not None and position >= self.size - WARM_TAIL) or self.file.cached(
            position, size
        )

    @property
    def knows_largest_timestamp(self) -> bool:
        """Whether :meth:`largest_timestamp` need not read the time index's file."""
        return self.max_timestamp != -2

    def largest_timestamp(self) -> int:
        """Return the largest timestamp of the segment's records, -1 if none has one."""
        if self.max_timestamp == -2:
            self.max_timestamp, relative = time_index.last(self._read_last(names.TIME_INDEX))
            self.max_timestamp_offset = self.base_offset + relative
        return self.max_timestamp

    def from_timestamp(self, timestamp: int) -> int:
        """Return a position before which every batch is older than ``timestamp``.

        That is 0 if the offset index is wrong; the next :meth:`locate` rebuilds it.
        """
        with self._entries(self._time_index, names.TIME_INDEX, time_index.ENTRY_SIZE) as entries:
            found = time_index.before(*entries, timestamp)
        if found is None:
            return 0
        position, last_offset = self.floor(self.base_offset + found[1])
        if not position or position >= self.written:
            return position
        _, header = next(self.scan(position), (0, None))
        return position if header is not None and header.last_offset == last_offset else 0

    def aborted(self) -> list[Aborted]:
        """Return the transactions whose abort markers are in this segment."""
        if self._txns is not None:
            return self._txns
        return txn_index.entries(self._read(names.TXN_INDEX))

    def load_first_timestamp(self) -> int:
        """Return the timestamp at which ``segment.ms`` starts, -1 for an empty segment."""
        if self.first_timestamp < 0 < self.size:
            for _, header in self.scan():
                self.first_timestamp = header.max_timestamp
                break
        return self.first_timestamp

    def index_data(self) -> tuple[bytes, bytes, list[Aborted]]:
        """Return the content of the three index files, from memory if they are not written yet."""
        index = self._index if self._index is not None else self._read(names.INDEX)
        times = self._time_index if self._time_index is not None else self._read(names.TIME_INDEX)
        return bytes(index), bytes(times), self.aborted()

    def txn_index_data(self) -> bytes:
        """Return the content of the file of aborted transactions."""
        return self._read(names.TXN_INDEX)

    # -- inside

    def _add_entries(self, relative: int, position: int) -> None:
        if self._index is None or self._time_index is None:
            self.activate()
        assert self._index is not None
        assert self._time_index is not None
        self._index += offset_index.ENTRY.pack(relative, position)
        offset = self.max_timestamp_offset - self.base_offset
        time_index.maybe_append(self._time_index, self.max_timestamp, offset)
        self._since_index = 0

    def floor(self, offset: int, *, wait: bool = True) -> tuple[int, int | None]:
        """Return the position to scan for ``offset`` from, and the last offset of the batch there.

        The last offset is None at the beginning, and -1 if the index entry is out of range.
        """
        size = offset_index.ENTRY_SIZE
        with self._entries(self._index, names.INDEX, size, wait=wait) as entries:
            found = offset_index.floor(*entries, offset - self.base_offset)
        if found is None:
            return 0, None
        if not 0 < found[1] < self.size:
            return 0, -1
        return found[1], self.base_offset + found[0]

    @contextmanager
    def _entries(
        self, data: bytearray | None, suffix: str, size: int, *, wait: bool = True
    ) -> Iterator[tuple[offset_index.Read, int]]:
        """Yield a reader of an index's entries, and their count; close its file afterwards."""
        if data is not None:
            yield offset_index.memory(data, size), len(data) // size
            return
        file = self._disk.open(self.path(suffix))
        try:
            try:
                count = file.size() // size
            except FileNotFoundError:
                count = 0
            yield offset_index.on_disk(reader(file, wait=wait), size), count
        finally:
            file.close()

    def _read(self, suffix: str) -> bytes:
        try:
            return self._disk.read(self.path(suffix))
        except FileNotFoundError:
            return b""

    def _read_last(self, suffix: str) -> bytes:
        """Return the last entry of an index file, empty if there is none."""
        with self._entries(None, suffix, time_index.ENTRY_SIZE) as (read, count):
            return bytes(read(count - 1, 1)) if count else b""
