"""Reads a source segment: its whole batches in order, and its aborted transactions.

Rules: a pass must neither give damaged bytes a new checksum nor drop a record because of a damaged
batch. So every batch is checked, and damage ends the pass (:class:`CleaningFailed`). A read is as
large as the job's buffer size, or as large as a single batch that does not fit in that.
"""

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from kwire.log.compaction.job import CleaningFailed, SourceSegment
from kwire.log.disk import Disk
from kwire.log.formats import names, txn_index
from kwire.log.formats.txn_index import AbortedTxn
from kwire.records import compression, control
from kwire.records.header import (
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_END,
    BatchHeader,
    Buffer,
    crc_ok,
    parse,
)
from kwire.records.iterate import PAYLOAD_LIMIT, BadRecords, unpacked_records

Pace = Callable[[int], None]
"""A function that is called with the size of each read and write; it may wait to limit the rate."""


class SourceBatch(NamedTuple):
    """A whole batch of a segment."""

    header: BatchHeader
    data: memoryview
    """The batch with its header."""
    path: str
    position: int
    """The position in the file; this and ``path`` are for error messages."""

    @property
    def place(self) -> str:
        return f"file={self.path} position={self.position}"

    def payload(self) -> Buffer:
        """Return the decompressed records; raises :class:`CleaningFailed`."""
        packed = self.data[HEADER_SIZE:]
        codec = self.header.attributes & CODEC_MASK
        try:
            return compression.decompress(codec, packed, PAYLOAD_LIMIT) if codec else packed
        except compression.BadPayload as error:
            raise CleaningFailed(f"a batch does not decompress ({error}): {self.place}") from None

    def control_type(self) -> int | None:
        """Return the type of a control batch's record; None if the batch is empty."""
        if not self.header.record_count:
            return None
        try:
            record = next(unpacked_records(bytes(self.payload()), self.header))
        except BadRecords as error:
            raise CleaningFailed(f"a control batch is damaged ({error}): {self.place}") from None
        key = control.parse_key(record.key)
        if key is None:
            raise CleaningFailed(f"a control record has no type: {self.place}")
        return key.type


class SegmentReader:
    """The batches of one segment, in order."""

    __slots__ = ("_buffer_bytes", "_disk", "_end_offset", "_pace", "_path", "_source")

    def __init__(
        self,
        disk: Disk,
        directory: str,
        source: SourceSegment,
        end_offset: int,
        buffer_bytes: int,
        pace: Pace,
    ) -> None:
        """``end_offset`` is the base offset of the next segment."""
        self._disk = disk
        self._path = f"{directory}/{names.stem(source.base_offset)}{names.LOG}"
        self._source = source
        self._end_offset = end_offset
        self._buffer_bytes = max(buffer_bytes, HEADER_SIZE)
        self._pace = pace

    def batches(self) -> Generator[SourceBatch, None, None]:
        """Yield every batch; raises :class:`CleaningFailed` at one that is damaged or cut off."""
        file = self._disk.open(self._path)
        try:
            position, read_bytes, size = 0, self._buffer_bytes, self._source.size
            end_offset = self._source.base_offset
            while position < size:
                data = memoryview(file.read(position, min(read_bytes, size - position)))
                self._pace(len(data))
                at, read_bytes, data_size = 0, self._buffer_bytes, len(data)
                while data_size - at >= HEADER_SIZE:
                    header = parse(data, at)
                    next_offset = self._check(header, position + at, end_offset)
                    following = at + header.length + LENGTH_END
                    if following > data_size:
                        read_bytes = max(read_bytes, following - at)
                        break
                    batch = SourceBatch(header, data[at:following], self._path, position + at)
                    if not crc_ok(batch.data, 0, header):
                        raise CleaningFailed(f"a batch has a wrong checksum: {batch.place}")
                    yield batch
                    at, end_offset = following, next_offset
                if not at and (data_size < HEADER_SIZE or read_bytes <= data_size):
                    raise CleaningFailed(f"the file ends early: {self._path}")
                position += at
        finally:
            file.close()

    def _check(self, header: BatchHeader, position: int, end_offset: int) -> int:
        """Return a batch's next offset; raises CleaningFailed for one that cannot be here."""
        size, next_offset = header.length + LENGTH_END, header.next_offset
        if header.magic != 2:
            problem = f"only batches of magic 2 are cleaned, not {header.magic}"
        elif not HEADER_SIZE <= size <= self._source.size - position or header.record_count < 0:
            problem = f"a batch has an impossible size of {size} bytes"
        elif not header.can_follow(end_offset) or next_offset > self._end_offset:
            problem = (
                f"a batch of offsets {header.base_offset} to {header.last_offset} cannot follow "
                f"offset {end_offset}, or lie below {self._end_offset}"
            )
        else:
            return next_offset
        raise CleaningFailed(f"{problem}: file={self._path} position={position}")


def aborted_transactions(disk: Disk, directory: str, source: SourceSegment) -> Iterator[AbortedTxn]:
    """Yield the transactions whose abort markers are in a segment, in the markers' order.

    Raises :class:`CleaningFailed` if the index is damaged or missing: without its entries, the
    aborted records would count as committed.
    """
    if not source.has_txn_index:
        return
    path = f"{directory}/{names.stem(source.base_offset)}{names.TXN_INDEX}"
    try:
        # All entries are read at once, because the file may be replaced in the meantime.
        data = disk.read(path)
    except FileNotFoundError:
        raise CleaningFailed(f"the index of aborted transactions is missing: {path}") from None
    if not txn_index.plausible(data, source.base_offset):
        raise CleaningFailed(f"the index of aborted transactions is damaged: {path}")
    yield from txn_index.entries(data)
