"""The search for the offset of a timestamp, which has to read more than an index.

It is not on the path of Produce or Fetch. It reads records, whose content clients choose: therefore
it runs in slices, leaves decompression to a thread, and does not decompress payloads above a limit.
"""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kwire.log.cold_lookups import preparation, run_all
from kwire.log.disk import Disk, File
from kwire.log.partition_log import PartitionLog
from kwire.log.segments import warming
from kwire.log.segments.segment import UNKNOWN_TIMESTAMP, Segment, WrongIndex
from kwire.records.compression import BadPayload, decompress
from kwire.records.header import (
    HEADER_SIZE,
    BatchHeader,
)
from kwire.records.iterate import BadRecords, times

PAYLOAD_MAX: Final = 64 << 20
"""The largest decompressed payload in bytes; for a larger one only the batch's header is used."""
_SLICE_BATCHES: Final = 20
"""The number of batches between two pauses; each may be a read of the disk."""
_SLICE_SEGMENTS: Final = 50
_SLICE_RECORDS: Final = 200
_READ_HERE: Final = 16 * 1024
"""The largest batch that is read without a thread."""
_MAGIC: Final = 2


class OffsetAndTimestamp(NamedTuple):
    """The offset and timestamp of the record that a search found."""

    offset: int
    timestamp: int


class Job(NamedTuple):
    """A call to make in a thread, whose result is sent back to the search."""

    call: Callable[[], bytes | None]
    disk: Disk | None
    """The disk that the call reads and may wait for; None if it only decompresses."""


Search: TypeAlias = Generator[Job | None, bytes | None, OffsetAndTimestamp | None]
"""A search in slices: it yields None to pause, or a job for a thread, and is sent the job's
result."""


def run(search: Search) -> OffsetAndTimestamp | None:
    """Run a whole search without a pause, for callers that serve no other requests meanwhile."""
    answer = None
    while True:
        try:
            job = search.send(answer)
        except StopIteration as done:
            record: OffsetAndTimestamp | None = done.value
            return record
        answer = None if job is None else job.call()


def first_at_least(log: PartitionLog, timestamp: int) -> Search:
    """Find the first record whose timestamp is ``timestamp`` or later."""
    for number, segment in enumerate(list(log.segments), 1):
        if not number % _SLICE_SEGMENTS:
            yield None
        if (yield from _largest_timestamp(log, segment)) < timestamp:
            continue
        position = yield from position_of(segment, timestamp)
        for count, (at, header) in enumerate(segment.scan(position), 1):
            if not count % _SLICE_BATCHES:
                yield None
            if header.max_timestamp >= timestamp and header.last_offset >= log.log_start:
                record = yield from _in_batch(log, segment, at, header, timestamp)
                if record is not None:
                    return record
    return None


def youngest(log: PartitionLog) -> Search:
    """Find the first record with the largest timestamp, ignoring those below the log start."""
    best: Segment | None = None
    for number, segment in enumerate(list(log.segments), 1):
        largest = yield from _largest_timestamp(log, segment)
        if largest > (best.largest_timestamp() if best else -1):
            best = segment
        if not number % _SLICE_SEGMENTS:
            yield None
    if best is None:
        return None
    if best.max_timestamp_offset >= log.log_start:
        position = yield from position_of(best, best.max_timestamp)
        for count, (at, header) in enumerate(best.scan(position), 1):
            if not count % _SLICE_BATCHES:
                yield None
            if header.max_timestamp == best.max_timestamp:
                return (yield from _in_batch(log, best, at, header, header.max_timestamp))
    return (yield from _youngest_left(log))


def _largest_timestamp(
    log: PartitionLog, segment: Segment
) -> Generator[Job | None, bytes | None, int]:
    """Return a segment's largest timestamp; pause afterwards if it had to be read."""
    is_loaded = segment.max_timestamp != UNKNOWN_TIMESTAMP
    for job in preparation(segment.largest_timestamp, partial(warming.ages, segment)):
        yield Job(partial(run_all, [job]), log.disk)
    largest = segment.largest_timestamp()
    if not is_loaded:
        yield None
    return largest


def position_of(segment: Segment, timestamp: int) -> Generator[None, bytes | None, int]:
    """Return a position before which every batch is older than ``timestamp``.

    It is 0 if the entries of the indexes contradict the batches: the timestamp of a time index
    entry must be the largest of its batch. If the offset index is wrong, the next lookup of an
    offset rebuilds both.
    """
    entry = segment.indexes.before(timestamp)
    if entry is None:
        return 0
    largest, offset = entry[0], segment.base_offset + entry[1]
    position, last_offset = segment.floor(offset)
    if not position or position >= segment.written:
        return position
    try:
        batches = segment.scan_from_entry(position, last_offset)
        for count, (_, header) in enumerate(batches, 1):
            if header.last_offset >= offset:
                return position if header.max_timestamp == largest else 0
            if not count % _SLICE_BATCHES:
                yield None
    except WrongIndex:
        pass
    return 0


def _in_batch(
    log: PartitionLog, segment: Segment, position: int, header: BatchHeader, timestamp: int
) -> Search:
    """Find the batch's first record at or after ``timestamp`` that is not below the log start."""
    try:
        for count, (offset, time) in enumerate(
            (yield from _times(log, segment, position, header)), 1
        ):
            if not count % _SLICE_RECORDS:
                yield None
            if time >= timestamp and offset >= log.log_start:
                return OffsetAndTimestamp(offset, time)
    except BadRecords:
        # If the records cannot be read, the batch as a whole is the best result.
        return OffsetAndTimestamp(header.base_offset, header.max_timestamp)
    return None


def _times(
    log: PartitionLog, segment: Segment, position: int, header: BatchHeader
) -> Generator[Job | None, bytes | None, Iterator[tuple[int, int]]]:
    """Return offsets and timestamps of a batch's records; BadRecords if undecodable.

    Keys, values and headers are skipped: a single record can have millions of headers.
    """
    if header.magic != _MAGIC:
        raise BadRecords(f"a batch of format {header.magic}")
    file, plain = segment.file, None
    if header.size <= _READ_HERE and not header.compression:
        plain = _payload(file, position, header)
    else:
        file.pin()
        try:
            packed = yield Job(partial(_payload, file, position, header), log.disk)
        finally:
            file.unpin()
        if packed is not None and header.compression:
            plain = yield Job(partial(_unpack, packed, header.compression), None)
        else:
            plain = packed
    if plain is None:
        raise BadRecords("a payload that cannot be unpacked, or was cut off meanwhile")
    return times(plain, header)


def _payload(file: File, position: int, header: BatchHeader) -> bytes | None:
    """Read a batch's payload as stored; None if the file ends before it."""
    size = header.size - HEADER_SIZE
    data = file.read(position + HEADER_SIZE, size)
    return data if len(data) == size else None


def _unpack(packed: bytes, codec: int) -> bytes | None:
    """Decompress a payload; None if it is damaged or too large."""
    try:
        return bytes(decompress(codec, packed, PAYLOAD_MAX))
    except BadPayload:
        return None


def _youngest_left(log: PartitionLog) -> Search:
    """Do the work of :func:`youngest` by reading batches from the local start onwards.

    This is needed if the youngest batch of the segment is below the log start.
    """
    best: OffsetAndTimestamp | None = None
    start = log.local_start
    first = log.segments[log.segments.index_of(start)]
    look_up, make_job = partial(first.locate, start), partial(warming.lookups, first, start)
    for job in preparation(look_up, make_job):
        yield Job(partial(run_all, [job]), log.disk)
    batches = log.segments.batches_from(start)
    for count, (segment, position, header) in enumerate(batches, 1):
        if not count % _SLICE_BATCHES:
            yield None
        if header.max_timestamp > (best.timestamp if best else -1):
            floor = best.timestamp + 1 if best else 0
            best = (yield from _largest(log, segment, position, header, floor)) or best
    return best


def _largest(
    log: PartitionLog, segment: Segment, position: int, header: BatchHeader, floor: int
) -> Search:
    best: OffsetAndTimestamp | None = None
    try:
        for count, (offset, time) in enumerate(
            (yield from _times(log, segment, position, header)), 1
        ):
            if not count % _SLICE_RECORDS:
                yield None
            if offset >= log.log_start and time >= floor:
                floor = time + 1
                best = OffsetAndTimestamp(offset, time)
    except BadRecords:
        return best
    return best
