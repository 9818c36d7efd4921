"""Reads a snapshot piece by piece for a follower, and finds damage before it is served.

Rules: a piece costs as much as its bytes and one batch, however large the snapshot is. A batch is
checked with the piece in which it ends, so a follower never has all pieces of a damaged snapshot.
A piece is only checked if the pieces before it were read: the position of its first batch must be
known. Followers read from 0, and each of them has everything checked again.
"""

from bisect import bisect_right

from kwire.errors import CorruptMessage
from kwire.raftmeta.raft.control_records import count_footers
from kwire.raftmeta.raft.events import SnapshotSlice
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage import damage
from kwire.raftmeta.storage.storage import Bytes, MetadataStorage
from kwire.records.header import HEADER_SIZE, LENGTH_END, crc_ok, headers, parse


def read_piece(storage: MetadataStorage, piece: SnapshotSlice, size: int) -> Bytes:
    """Return a piece of a snapshot of ``size`` bytes; raise KafkaStorageError if it is damaged."""
    snapshot, position, max_bytes = piece
    starts = storage.batch_positions.setdefault(snapshot, [0])
    start = starts[bisect_right(starts, position) - 1]
    end = min(position + max_bytes, size)
    try:
        first_end = _first_end(storage, snapshot, start)
        if first_end > size:
            raise CorruptMessage(f"a batch ends at {first_end}, but the snapshot at {size}")
        if not position < first_end <= end:  # It ends later, or nobody has read up to here.
            return storage.read_snapshot(snapshot, position, max_bytes)
        data = storage.read_snapshot(snapshot, start, end - start)
        _check(data, start, starts, is_last=end == size)
    except CorruptMessage as error:
        raise damage.of_snapshot(snapshot) from error
    return data[position - start :]


def _first_end(storage: MetadataStorage, snapshot: SnapshotId, start: int) -> int:
    """Return the end of the batch at ``start``."""
    data = storage.read_snapshot(snapshot, start, HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        raise CorruptMessage(f"the batch at {start} is cut off")
    header = parse(data)
    if header.magic != 2 or header.length < HEADER_SIZE - LENGTH_END:
        raise CorruptMessage(f"no record batch at {start}")
    return start + header.size


def _check(data: Bytes, start: int, starts: list[int], *, is_last: bool) -> None:
    """Check the whole batches in ``data``, and note where the batches behind them begin.

    ``is_last``: the snapshot ends with this data.
    """
    end, has_footer = 0, False
    for pos, header in headers(data):
        if not crc_ok(data, pos, header):
            raise CorruptMessage(f"the batch at {start + pos} is damaged")
        end = pos + header.size
        has_footer = count_footers(data, pos, header) == 1
        if start + end > starts[-1]:
            starts.append(start + end)
    if is_last and not (has_footer and end == len(data)):
        raise CorruptMessage("the snapshot does not end with its footer")
