"""The leader of the quorum while brokers fetch its snapshot of 100,000 partitions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.codec.messages.metadata_records import NoOpRecord, PartitionRecord
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.storage import Bytes
from simulation.disk import SimDisk
from simulation.raft.quorums import quorum_of_one
from tests.support.raftmeta.one_node import follower, part
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

PARTITIONS: Final = 100_000
BATCH_RECORDS: Final = 500
MS_A_MIB: Final = 0.6
"""The time to read and check a MiB that is in the page cache: about 0.4 and 0.2 ms."""
BROKERS: Final = 20


class ChargingStorage(DiskStorage):
    """A disk whose reads of snapshots take the time of their bytes."""

    meter: TurnMeter

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Bytes:
        data = super().read_snapshot(snapshot, position, max_bytes)
        self.meter.charge(MS_A_MIB * len(data) / (1 << 20))
        return data


@attrs.frozen
class Served:
    """A leader and its snapshot."""

    quorum: RaftService
    snapshot: SnapshotId
    meter: TurnMeter

    def request(self, position: int) -> FetchSnapshotRequest:
        asking = follower(9, of=1, epoch=self.quorum.state.epoch).state
        return messages.snapshot_request(asking, self.snapshot, position)


@asynccontextmanager
async def leader_with_a_snapshot(meter: TurnMeter) -> AsyncIterator[Served]:
    storage = ChargingStorage(SimDisk(), now_ms=1)
    storage.meter = meter
    records = [
        PartitionRecord(
            partition_id=number,
            topic_id=bytes(16),
            replicas=[1, 2, 3],
            isr=[1, 2, 3],
            leader=1,
            directories=[bytes(16)] * 3,
        )
        for number in range(BATCH_RECORDS)
    ]
    async with quorum_of_one(storage=storage) as quorum:
        await quorum.wait_caught_up()
        await quorum.append_nowait([NoOpRecord()], quorum.state.epoch).wait()
        contents = [records] * (PARTITIONS // BATCH_RECORDS)
        snapshot = await quorum.snapshots.write(quorum.high_watermark, 1, contents, 0)
        yield Served(quorum, snapshot, meter)


SNAPSHOTS: Final = Scene("snapshots of the metadata", leader_with_a_snapshot)
row = SNAPSHOTS.operation


@row("FetchSnapshot by several brokers", "partitions", PARTITIONS, "FetchSnapshot")
async def fetch_snapshot(scene: Served, size: int) -> None:
    """Brokers that were started together ask at the same time."""
    position, file_size = 0, 1
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(part(await scene.quorum.handle(scene.request(position))))

    while position < file_size:
        answers.clear()
        await trio.lowlevel.checkpoint()
        with scene.meter.measuring():
            async with trio.open_nursery() as nursery:
                for _ in range(BROKERS):
                    nursery.start_soon(ask)
        assert not any(answer.error_code for answer in answers)
        file_size = answers[0].size
        position += len(answers[0].unaligned_records)
    assert file_size > 50 * size
