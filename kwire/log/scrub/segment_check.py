"""The check of one segment: reads every batch, and reports the ranges without an intact batch.

Rules: a batch is intact if its checksum matches, its offsets lie between the batch before it and
the batch after it, and its leader epoch is that of the log. The checksum covers neither the offset,
the length nor the epoch. The content of records is not judged: unreadable records with a valid
checksum are stored as clients sent them.

After a damaged batch the check continues at the next intact one. If the length is damaged too, the
segment's offset index shows where batches begin. Messages of the formats before record batches are
checked by their own checksum.

A leader epoch that differs from the log's list of epochs counts as damage, unless an intact
neighbour's epoch differs too and the epochs still increase: then the list may be wrong.

The index files are compared with the batches meanwhile (:mod:`kwire.log.inspection.index_check`).
A segment with damaged batches or messages of an old format does not show whether they are right.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from kwire.log.disk import Disk, File
from kwire.log.formats import names, offset_index
from kwire.log.inspection.index_check import IndexCheck, WrongEntry
from kwire.log.scrub.job import SegmentJob, SegmentReport
from kwire.log.segments.damage import DamagedRange
from kwire.records.crc import crc32c
from kwire.records.header import (
    ATTRIBUTES_POS,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC_POS,
    MIN_LENGTH,
    BatchHeader,
    parse,
)

READ_BYTES: Final = 512 << 10
_OLD_CRC_POS: Final = 12
"""The position of the checksum in messages of magic 0 and 1."""
_OLD_MAGICS: Final = (0, 1)
_MAGIC: Final = 2
NO_EPOCH: Final = -1
_WRONG: Final = "wrong checksum"
Pace = Callable[[int], None]
"""A function that is called with the size of each read; it may wait to limit the rate."""


def check_segment(disk: Disk, job: SegmentJob, pace: Pace) -> SegmentReport:
    """Read a whole segment and return its damage; raises OSError."""
    path = f"{job.directory}/{names.stem(job.base_offset)}"
    file = disk.open(path + names.LOG)
    try:
        indexes = None
        if job.index_interval is not None:
            indexes = _read_indexes(disk, path, job.base_offset, job.index_interval, pace)
        check = _Check(file, job, pace, lambda: _index_positions(disk, path, job), indexes)
        damage = tuple(check.run())
        wrong = () if check.indexes is None else tuple(check.indexes.findings)
        return SegmentReport(size=job.size, damage=damage, wrong=wrong)
    finally:
        file.close()


def _read_indexes(disk: Disk, path: str, base_offset: int, interval: int, pace: Pace) -> IndexCheck:
    """Read the index files of a segment; one that is missing is reported as wrong."""
    files: dict[str, bytes] = {}
    missing: list[WrongEntry] = []
    for suffix in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX):
        try:
            files[suffix] = _read_stored(disk, path + suffix, pace)
        except FileNotFoundError:
            if suffix != names.TXN_INDEX:
                missing.append(WrongEntry(suffix, 0, None, "the file is missing"))
    check = IndexCheck(base_offset, files, only_first=True, is_complete=True, interval=interval)
    check.findings += missing
    return check


def _read_stored(disk: Disk, path: str, pace: Pace) -> bytes:
    file, data = disk.open(path), bytearray()
    try:
        size = file.size()
        while len(data) < size and (piece := file.read_stored(len(data), READ_BYTES)):
            data += piece
            pace(len(piece))
    finally:
        file.close()
    return bytes(data)


def _index_positions(disk: Disk, path: str, job: SegmentJob) -> list[int]:
    """Return the positions in the offset index, in order; none if there is no index."""
    try:
        data = disk.read(path + names.INDEX)
    except FileNotFoundError:
        return []
    whole = len(data) - len(data) % offset_index.ENTRY_SIZE
    entries = offset_index.entries(data[:whole], job.base_offset)
    return sorted({position for _, position in entries if 0 < position < job.size})


class _Check:
    """The progress of a check."""

    def __init__(
        self,
        file: File,
        job: SegmentJob,
        pace: Pace,
        index_positions: Callable[[], list[int]],
        indexes: IndexCheck | None,
    ) -> None:
        self._file = file
        self._job = job
        self._pace = pace
        self._index_positions = index_positions
        self.indexes = indexes
        """The comparison of the index files; None if they cannot be judged."""
        self._buffer, self._start = b"", 0
        self._end_offset = job.base_offset
        """The offset after the last intact batch."""
        self._last_epoch = NO_EPOCH
        """The leader epoch of the last intact batch."""
        self._is_epoch_known = True
        """True while the last intact batch had the epoch in the log's list."""

    def run(self) -> Iterator[DamagedRange]:
        """Yield the damaged ranges in order."""
        position, size, last = 0, self._job.size, 0
        while position < size:
            header, problem = self._judge(position)
            if header is not None and problem is None:
                self._pass(position, header)
                last = position
                position += header.size
                continue
            begin, end_offset = position, self._job.end_offset
            position, header = self._next_intact(position, header)
            if header is not None:
                end_offset = header.base_offset if header.magic == _MAGIC else self._end_offset
            self.indexes = None
            yield DamagedRange(self._end_offset, end_offset, begin, position, problem or "")
        if self.indexes is not None:
            self.indexes.finish(last, self._end_offset)

    def _pass(self, position: int, header: BatchHeader) -> None:
        """Account for an intact batch."""
        if header.magic == _MAGIC:
            self._end_offset = header.next_offset
            self._last_epoch = header.leader_epoch
            self._is_epoch_known = self._has_known_epoch(header)
            if self.indexes is not None:
                self.indexes.compare(position, header, self._read)
        else:
            self._end_offset = header.base_offset + 1
            self.indexes = None

    # -- one batch

    def _judge(self, position: int) -> tuple[BatchHeader | None, str | None]:
        """Return the header at a position and what is wrong with the batch; None if intact."""
        header = self._header_at(position)
        if header is None:
            return None, "cut off inside the header of a batch"
        return header, self._problem(position, header)

    def _problem(self, position: int, header: BatchHeader) -> str | None:
        is_old = header.magic in _OLD_MAGICS
        length_min = MIN_LENGTH if is_old else HEADER_SIZE - LENGTH_END
        if header.length < length_min or position + header.size > self._job.size:
            return f"length {header.length}, {self._job.size - position} bytes are left"
        if is_old:
            return self._old_problem(position, header)
        if header.magic != _MAGIC:
            return f"magic {header.magic}"
        return (
            self._offset_problem(position, header)
            or self._epoch_problem(position, header)
            or self._checksum_problem(position, header)
        )

    def _old_problem(self, position: int, header: BatchHeader) -> str | None:
        """Check a message of magic 0 or 1; if compressed, its offset is that of its last record."""
        if not self._end_offset <= header.base_offset < self._job.end_offset:
            return f"offset {header.base_offset} is out of order"
        stored = int.from_bytes(self._read(position + _OLD_CRC_POS, MAGIC_POS - _OLD_CRC_POS))
        return None if self._checksum(zlib.crc32, position, header, MAGIC_POS) == stored else _WRONG

    def _checksum_problem(self, position: int, header: BatchHeader) -> str | None:
        checksum = self._checksum(crc32c, position, header, ATTRIBUTES_POS)
        return None if checksum == header.crc else _WRONG

    def _checksum(
        self, update: Callable[[bytes, int], int], position: int, header: BatchHeader, begin: int
    ) -> int:
        """Return the checksum of a batch from ``begin`` onwards, read in pieces.

        A damaged length may cover most of the file.
        """
        checksum = 0
        for at in range(position + begin, position + header.size, READ_BYTES):
            size = min(READ_BYTES, position + header.size - at)
            checksum = update(self._read(at, size), checksum)
        return checksum

    def _offset_problem(self, position: int, header: BatchHeader) -> str | None:
        """Check offsets; a base offset that is too high is noticed at the next batch."""
        is_inside = header.next_offset <= self._job.end_offset
        if not header.can_follow(self._end_offset) or not is_inside:
            return f"offsets {header.base_offset} to {header.last_offset} are out of order"
        if header.base_offset > self._end_offset:
            following = self._header_at(position + header.size)
            if (
                following is not None
                and following.magic == _MAGIC
                and self._end_offset <= following.base_offset < header.next_offset
            ):
                return f"offset {header.base_offset}, the next batch has {following.base_offset}"
        return None

    def _epoch_problem(self, position: int, header: BatchHeader) -> str | None:
        if self._has_known_epoch(header) or not self._is_epoch_known:
            return None
        position += header.size
        following = self._header_at(position)
        if (
            following is not None
            and not self._has_known_epoch(following)
            and self._last_epoch <= header.leader_epoch <= following.leader_epoch
            and HEADER_SIZE <= following.size <= self._job.size - position
            and self._checksum_problem(position, following) is None
        ):
            return None  # The list of epochs is wrong.
        return f"leader epoch {header.leader_epoch}"

    def _has_known_epoch(self, header: BatchHeader) -> bool:
        epochs = self._job.epochs
        index = bisect_right(epochs, header.base_offset, key=lambda entry: entry[1])
        expected_epoch = epochs[index - 1][0] if index else NO_EPOCH
        return header.magic == _MAGIC and header.leader_epoch == expected_epoch

    # -- after damage

    def _next_intact(
        self, position: int, header: BatchHeader | None
    ) -> tuple[int, BatchHeader | None]:
        """Return the first intact batch after a damaged one, or the end of the file."""
        chained = self._next_by_length(position, header)
        positions = self._index_positions()
        first, stop = bisect_right(positions, position), bisect_left(positions, chained)
        for candidate in positions[first:stop]:
            intact, problem = self._judge(candidate)
            if problem is None:
                return candidate, intact
        return chained, self._header_at(chained) if chained < self._job.size else None

    def _next_by_length(self, position: int, header: BatchHeader | None) -> int:
        """Return the first intact batch reached by the lengths of damaged batches, or the end."""
        while header is not None and header.length >= MIN_LENGTH:
            position += header.size
            if position >= self._job.size:
                break
            header, problem = self._judge(position)
            if problem is None:
                return position
        return self._job.size

    # -- reading

    def _header_at(self, position: int) -> BatchHeader | None:
        """Return the header at a position; None if the file ends before the end of its magic.

        A message of an old format may be shorter than a header; zeros take the place of the rest.
        """
        data = self._read(position, min(HEADER_SIZE, self._job.size - position))
        return parse(data.ljust(HEADER_SIZE, b"\0")) if len(data) > MAGIC_POS else None

    def _read(self, position: int, size: int) -> bytes:
        """Return bytes of the file; fewer if it ends early."""
        at = position - self._start
        if at < 0 or at + size > len(self._buffer):
            count = min(max(size, READ_BYTES), self._job.size - position)
            if count <= 0:
                return b""
            self._buffer, self._start, at = self._file.read_stored(position, count), position, 0
            self._pace(count)
        return self._buffer[at : at + size]
