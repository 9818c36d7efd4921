"""Searches in a log that read more than an index: by timestamp, and for producers' state.

None of this is on the path of Produce or Fetch.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kwire.log import names
from kwire.log.producers import CorruptSnapshot, read_snapshot
from kwire.log.segment import Segment
from kwire.records.header import CONTROL, BatchHeader
from kwire.records.iterate import BadRecords, records

if TYPE_CHECKING:
    from kwire.log.partition_log import PartitionLog


class Spot(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp: int


def first_at_least(log: "PartitionLog", timestamp: int) -> Spot | None:
    """The first record whose timestamp is ``timestamp`` or later."""
    for segment in log.segments:
        if segment.largest_timestamp() < timestamp:
            continue
        position = segment.from_timestamp(timestamp)
        for at, header in segment.scan(position):
            if header.max_timestamp >= timestamp and header.last_offset >= log.start_offset:
                spot = _in_batch(log, segment, at, header, timestamp)
                if spot is not None:
                    return spot
    return None


def youngest(log: "PartitionLog") -> Spot | None:
    """The first record with the largest timestamp; none below the start of the log."""
    best: Segment | None = None
    for segment in log.segments:
        if segment.largest_timestamp() > (best.largest_timestamp() if best else -1):
            best = segment
    if best is None:
        return None
    if best.max_timestamp_offset >= log.start_offset:
        position = best.from_timestamp(best.max_timestamp)
        for at, header in best.scan(position):
            if header.max_timestamp == best.max_timestamp:
                return _in_batch(log, best, at, header, best.max_timestamp)
    return _youngest_left(log)


def replay_producers(log: "PartitionLog", end_offset: int) -> None:
    """Make the log's producer state that of everything below ``end_offset``."""
    start_offset = load_snapshot(log, end_offset)
    for segment, position, header in batches_from(log, start_offset):
        if header.next_offset > end_offset:
            return
        if header.producer_id >= 0:
            data = segment.file.read(position, header.size) if header.attributes & CONTROL else b""
            log.producers.replay(data, 0, header)


def load_snapshot(log: "PartitionLog", end_offset: int) -> int:
    """Restore the newest good snapshot up to ``end_offset``; where the replay has to begin."""
    for offset in reversed([s for s in log.snapshots if s <= end_offset]):
        path = f"{log.directory}/{names.stem(offset)}{names.SNAPSHOT}"
        try:
            log.producers.restore(read_snapshot(log.disk.read(path)))
        except (CorruptSnapshot, FileNotFoundError):
            log.disk.remove(path)
            log.snapshots.remove(offset)
            continue
        return offset
    log.producers.clear()
    return log.segments[0].base_offset if log.segments else 0


def batches_from(log: "PartitionLog", offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Every batch that ends past ``offset``, and where it lies."""
    for index, segment in enumerate(log.segments):
        following = log.segments[index + 1 : index + 2]
        if following and following[0].base_offset <= offset:
            continue
        found = segment.locate(offset) if offset > segment.base_offset else (0, 0)
        for position, header in segment.scan(found[0]) if found is not None else ():
            yield segment, position, header


def _in_batch(
    log: "PartitionLog", segment: Segment, position: int, header: BatchHeader, timestamp: int
) -> Spot | None:
    """The first record of the batch that is young enough and still in the log."""
    data = segment.file.read(position, header.size)
    try:
        for record in records(data, 0, header):
            if record.timestamp >= timestamp and record.offset >= log.start_offset:
                return Spot(record.offset, record.timestamp)
    except BadRecords:
        # The batch as a whole is the best answer about records that nobody can read.
        return Spot(header.base_offset, header.max_timestamp)
    return None


def _youngest_left(log: "PartitionLog") -> Spot | None:
    """The same by reading: the segment's youngest batch is below the start of the log."""
    best: Spot | None = None
    for segment, position, header in batches_from(log, log.start_offset):
        if header.max_timestamp > (best.timestamp if best else -1):
            floor = best.timestamp + 1 if best else 0
            best = _largest(log, segment, position, header, floor) or best
    return best


def _largest(
    log: "PartitionLog", segment: Segment, position: int, header: BatchHeader, floor: int
) -> Spot | None:
    best: Spot | None = None
    data = segment.file.read(position, header.size)
    try:
        for record in records(data, 0, header):
            if record.offset >= log.start_offset and record.timestamp >= floor:
                floor = record.timestamp + 1
                best = Spot(record.offset, record.timestamp)
    except BadRecords:
        return best
    return best
