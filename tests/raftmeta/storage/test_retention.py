"""Retention of older metadata snapshots and log beside the newest snapshot."""

from random import Random

import pytest
import trio

from kwire.codec.messages.metadata_records import TopicRecord
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.cleaning import MetadataRetention
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, config_of, voters_of

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("limits", "size", "age", "forbidden"),
    [
        ({"max_bytes": 100, "max_ms": 1000}, 100, 1000, False),
        ({"max_bytes": 100, "max_ms": 1000}, 101, 0, True),
        ({"max_bytes": 100, "max_ms": 1000}, 0, 1001, True),
        ({"max_bytes": -1, "max_ms": -1}, 1 << 60, 1 << 60, False),
        ({"max_bytes": 0, "max_ms": -1}, 1, 0, True),
    ],
)
def test_limits(limits: dict[str, int], size: int, age: int, forbidden: bool) -> None:
    assert MetadataRetention(**limits).forbids(size, age) == forbidden


@pytest.mark.parametrize(
    ("retention", "snapshot_ids"),
    [
        (MetadataRetention(), [(3, 1), (4, 1)]),
        (MetadataRetention(max_bytes=400), [(4, 1)]),
        (MetadataRetention(max_bytes=-1), [(3, 1), (4, 1)]),
        (MetadataRetention(max_ms=DAY_MS - 1), [(4, 1)]),
        (MetadataRetention(max_ms=2 * DAY_MS), [(3, 1), (4, 1)]),
    ],
)
async def test_older_snapshot_is_deleted_beyond_the_retention_limits(
    retention: MetadataRetention, snapshot_ids: list[tuple[int, int]]
) -> None:
    storage = MemoryStorage()
    quorum = RaftService(
        config_of(1),
        storage,
        clock=TestClock(),
        random=Random(1),
        configured=voters_of(1),
        retention=retention,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(quorum.run)
        await quorum.delivery.wait_delivered(1)
        for number in (1, 2, 3):
            record = TopicRecord(name=f"topic-{number}", topic_id=bytes([number] * 16))
            await quorum.append_nowait([record], epoch=1).wait()
            timestamp_ms = TestClock().now_ms() - DAY_MS
            await quorum.snapshots.write(number + 1, 1, [[record]], last_timestamp_ms=timestamp_ms)
        await quorum.append_nowait([record], epoch=1).wait()
        nursery.cancel_scope.cancel()
    assert sorted(storage.snapshots) == snapshot_ids
    assert storage.start_offset == snapshot_ids[0][0]
    assert storage.end_offset == 5
