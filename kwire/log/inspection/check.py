"""The checks of ``kwire check-log``: damage in the files of a log, by file, offset and reason.

It only reads, and holds one batch and the indexes of one segment in memory. Rules: a damaged batch
does not hide the batches after it, unless its length is impossible. An index is compared with the
batches that it points to. A torn end left by a crash, which recovery would cut off, is reported
too. The rules for index entries are in :mod:`kwire.log.inspection.index_check`.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Final

import attrs

from kwire.errors import CorruptMessage
from kwire.log import epochs
from kwire.log.directory_lock import is_locked
from kwire.log.formats import checkpoints, names, offset_index, time_index, txn_index
from kwire.log.inspection.index_check import IndexCheck, WrongEntry
from kwire.log.producers import CorruptSnapshot, read_snapshot
from kwire.records.compression import BadPayload, decompress
from kwire.records.header import HEADER_SIZE, LENGTH_END, BatchHeader, crc_ok, parse
from kwire.records.iterate import BadRecords, unpacked_records

READ_BYTES: Final = 1 << 20
PAYLOAD_MAX: Final = 256 << 20
"""The largest decompressed payload that is checked, in bytes."""
WRONG_CRC: Final = "wrong CRC"
NO_EPOCHS: Final = (b"", b"0\n0\n")
"""The content of the leader epochs file of a log without batches."""
INDEX_ENTRIES: Final = {
    names.INDEX: offset_index.ENTRY_SIZE,
    names.TIME_INDEX: time_index.ENTRY_SIZE,
    names.TXN_INDEX: txn_index.ENTRY_SIZE,
}
"""The sizes of the entries of the index files, by suffix."""


def directory_in_use(path: Path) -> Path | None:
    """Return the log directory of a path if a broker is using it."""
    absolute = path.absolute()
    for directory in (absolute, absolute.parent, absolute.parent.parent):
        if is_locked(str(directory / names.LOCK)):
            return directory
    return None


@attrs.frozen(repr=False)
class Damage:
    """One piece of damage: where it is, and what is wrong there."""

    path: Path
    reason: str
    offset: int | None = None
    """The base offset of the batch, or the offset that an index entry names."""
    position: int | None = None
    """The position of the batch or the index entry in its file, in bytes."""

    def __str__(self) -> str:
        where = [
            f"{name}={value}"
            for name, value in (("offset", self.offset), ("position", self.position))
            if value is not None
        ]
        return " ".join([f"{self.path}:", *where, f"problem: {self.reason}"])


@attrs.define(eq=False, repr=False)
class Check:
    """A check of logs, which counts what it has read so far."""

    segment_count: int = 0
    batch_count: int = 0
    byte_count: int = 0

    def run(self, path: Path) -> Iterator[Damage]:
        """Check a ``.log`` file, a partition's directory, or a directory of partitions.

        Raises OSError for a path that cannot be read, and ValueError for a path without a log.
        """
        if path.is_file():
            if not _is_segment(path):
                raise ValueError(f"{path} is not a segment of a log: name a .log file or a folder")
            yield from self._segment(path, 0)
            return
        directories = [path, *sorted(entry for entry in path.iterdir() if entry.is_dir())]
        logs = [directory for directory in directories if any(map(_is_segment, _files(directory)))]
        if not logs:
            raise ValueError(
                f"{path} does not contain a log: name a data directory or a partition's folder"
            )
        for directory in logs:
            yield from self._partition(directory)

    def _partition(self, directory: Path) -> Iterator[Damage]:
        """Check all files of one partition's directory."""
        files = _files(directory)
        end_offset = 0
        segments = list(filter(_is_segment, files))
        for path in segments:
            base_offset = int(path.stem)
            if base_offset < end_offset:
                reason = f"the segment before ends at {end_offset}, behind this one's first offset"
                yield Damage(path, reason, base_offset)
            is_closed = path is not segments[-1]
            end_offset = yield from self._segment(path, end_offset, is_closed=is_closed)
        for path in files:
            if (problem := _small_file_problem(path)) is not None:
                yield Damage(path, problem)

    def _segment(
        self, path: Path, end_offset: int, *, is_closed: bool = False
    ) -> Generator[Damage, None, int]:
        """Check a segment and its indexes; the log before it ends at ``end_offset``.

        ``is_closed``: another segment follows, so the indexes are complete.

        Return the offset after the segment's last batch.
        """
        self.segment_count += 1
        base_offset = int(path.stem)
        indexes = _Indexes(path, base_offset, is_closed=is_closed)
        end_offset = max(end_offset, base_offset)
        with path.open("rb") as file:
            size = path.stat().st_size
            batches = _Batches(path, file, size)
            for position, header, data in batches:
                self.batch_count += 1
                if header.base_offset < end_offset or header.last_offset_delta < 0:
                    yield Damage(
                        path,
                        f"offsets go back, the batch before ends at {end_offset}",
                        header.base_offset,
                        position,
                    )
                elif header.last_offset - base_offset >= 1 << 31:
                    reason = "the offset is too far from the segment's first one for its indexes"
                    yield Damage(path, reason, header.base_offset, position)
                if (problem := _records_problem(header, data)) is not None:
                    yield Damage(path, problem, header.base_offset, position)
                is_damaged = problem == WRONG_CRC
                yield from indexes.compare(position, header, data, is_damaged=is_damaged)
                end_offset = max(end_offset, header.next_offset)
            self.byte_count += batches.end
            if batches.problem is not None:
                yield batches.problem
            else:
                yield from indexes.finish(end_offset)
        return end_offset


class _Batches:
    """The batches of one file, up to the first impossible length."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self.end = 0
        """The position after the last batch."""
        self.problem: Damage | None = None
        """The reason why the batches end before the end of the file, if they do."""

    def __iter__(self) -> Iterator[tuple[int, BatchHeader, bytes]]:
        buffer, start = b"", 0
        while self.end < self._size:
            position = self.end
            if position + HEADER_SIZE > start + len(buffer):
                start, buffer = position, self._read(position, READ_BYTES)
            if len(buffer) - (position - start) < HEADER_SIZE:
                self._stop("cut off inside the header of a batch")
                return
            header = parse(buffer, position - start)
            if header.magic != 2 or header.length < HEADER_SIZE - LENGTH_END:
                self._stop(f"not a batch: length {header.length}, magic {header.magic}")
                return
            if position + header.size > self._size:
                self._stop(f"cut off inside a batch of {header.size} bytes", header.base_offset)
                return
            if position + header.size > start + len(buffer):
                start, buffer = position, self._read(position, max(header.size, READ_BYTES))
            data = buffer[position - start : position - start + header.size]
            yield position, header, data
            self.end = position + header.size

    def _read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)

    def _stop(self, reason: str, offset: int | None = None) -> None:
        unread = self._size - self.end
        text = f"{reason}; {unread} bytes from here on were not checked"
        self.problem = Damage(self._path, text, offset, self.end)


def _records_problem(header: BatchHeader, data: bytes) -> str | None:
    """Return what is wrong with the content of one batch; None if it is valid."""
    if not crc_ok(data, 0, header):
        return WRONG_CRC
    try:
        payload = decompress(header.compression, memoryview(data)[HEADER_SIZE:], PAYLOAD_MAX)
        previous = header.base_offset - 1
        for record in unpacked_records(bytes(payload), header):
            if not previous < record.offset <= header.last_offset:
                return f"the record at offset {record.offset} is out of order"
            previous = record.offset
    except (BadPayload, BadRecords, CorruptMessage) as error:
        return f"records cannot be read: {error}"
    return None


class _Indexes:
    """The index files of one segment, which are compared with its batches as these are read."""

    def __init__(self, log: Path, base_offset: int, *, is_closed: bool) -> None:
        self._paths = {suffix: log.with_suffix(suffix) for suffix in INDEX_ENTRIES}
        files = {
            suffix: data for suffix in INDEX_ENTRIES if (data := self._load(suffix)) is not None
        }
        # kwire writes the files of a closed segment together, at the flush after the roll.
        is_complete = is_closed and names.TIME_INDEX in files
        self._check = IndexCheck(base_offset, files, is_complete=is_complete)
        self._last_position = 0
        if log.with_suffix(names.ABORTED).exists() and names.TXN_INDEX not in files:
            self._check.findings.append(WrongEntry(names.TXN_INDEX, 0, None, "the file is missing"))

    def compare(
        self, position: int, header: BatchHeader, data: bytes, *, is_damaged: bool
    ) -> Iterator[Damage]:
        """Compare a batch with the index entries that concern it."""
        self._last_position = position
        if is_damaged:
            self._check.skip(position)
        else:
            self._check.compare(position, header, lambda position, size: data)
        yield from self._take()

    def finish(self, end_offset: int) -> Iterator[Damage]:
        """Report entries after the last batch."""
        self._check.finish(self._last_position, end_offset)
        yield from self._take()

    def _take(self) -> Iterator[Damage]:
        findings = self._check.findings
        for wrong in findings:
            position = None if wrong.offset is None else wrong.position
            yield Damage(self._paths[wrong.suffix], wrong.reason, wrong.offset, position)
        findings.clear()

    def _load(self, suffix: str) -> bytes | None:
        """Return the content of an index file; None if the file does not exist.

        Apache Kafka reserves zeros after the entries while a segment is active.
        """
        try:
            data = self._paths[suffix].read_bytes()
        except FileNotFoundError:
            return None
        size, entry_bytes = len(data), INDEX_ENTRIES[suffix]
        if size % entry_bytes:
            return data
        used = len(data.rstrip(b"\0"))
        return data[: -(-used // entry_bytes) * entry_bytes]


def _small_file_problem(path: Path) -> str | None:
    """Return what is wrong with another file of the partition, by its checksum or format."""
    try:
        if path.name.endswith(names.SNAPSHOT):
            read_snapshot(path.read_bytes())
        elif path.name == names.EPOCHS_FILE and path.read_bytes() not in NO_EPOCHS:
            epochs.from_text(path.read_bytes())
        elif path.name == names.PARTITION_METADATA:
            checkpoints.parse_partition_metadata(path.read_bytes())
    except (CorruptSnapshot, ValueError) as error:
        return str(error)
    return None


def _files(directory: Path) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if entry.is_file())


def _is_segment(path: Path) -> bool:
    return path.suffix == names.LOG and names.stem_offset(path.stem) is not None
