"""A large snapshot from the leader does not delay the other work of a node."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from kwire.codec.messages.metadata_records import TopicRecord
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.events import SnapshotLoaded, SnapshotRefused
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.storage.records import pack, snapshot_chunks
from kwire.raftmeta.storage.storage import Bytes
from kwire.records.build import New, batch
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, Watcher, config_of, voters_of
from tests.support.raftmeta.snapshot_leader import LeaderOfMany

RECORDS = 1000
TOPIC = pack(TopicRecord(name="t", topic_id=bytes(16)))
FIRST = batch([New(None, TOPIC)], timestamp_ms=0, base_offset=0, leader_epoch=1)


class WearyClock(TestClock):
    """A tenth of a millisecond passes between any two looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def now(self) -> float:
        self.looks += 1
        return trio.current_time() + self.looks * 1e-4


def snapshot_of(snapshot: SnapshotId, count: int) -> bytes:
    topics = [TopicRecord(name=f"t{n}", topic_id=n.to_bytes(16)) for n in range(count)]
    return b"".join(
        snapshot_chunks(
            snapshot, [topics], voters=voters_of(1), kraft_version=0, last_timestamp_ms=0, now_ms=0
        )
    )


@attrs.define(eq=False)
class Turns:
    """A task that counts its turns."""

    count: int = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def fetching(storage: MemoryStorage, watcher: Watcher) -> AsyncIterator[RaftService]:
    """Run node 2 of three, which gets a large snapshot as soon as it fetches."""
    later = SnapshotId(5000, 1)
    storage.election = ElectionState(1, 1)
    quorum = RaftService(
        config_of(2, fetch_timeout_s=1000.0, request_timeout_s=1000.0),
        storage,
        clock=WearyClock(),
        random=Random(1),
        configured=voters_of(1, 2, 3),
        peers=LeaderOfMany(FIRST, 1, later, snapshot_of(later, RECORDS)),
    )
    watcher.watch(quorum)
    async with trio.open_nursery() as nursery:
        await nursery.start(quorum.run)
        yield quorum
        nursery.cancel_scope.cancel()


class Observed(MemoryStorage):
    """A disk that reports when the large snapshot is read to be delivered."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        super().__init__()
        self.on_read = on_read

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Bytes:
        self.on_read()
        return super().read_snapshot(snapshot, position, max_bytes)


async def test_large_snapshot_is_decoded_in_slices() -> None:
    """1,000 records of 0.1 ms each: others have a turn every 2 ms, 40 times at the least."""
    watcher, turns, before = Watcher(), Turns(), list[int]()
    storage = Observed(lambda: before.append(turns.count))
    async with fetching(storage, watcher) as quorum, trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await quorum.delivery.wait_delivered(5000)
        assert turns.count - before[0] >= 40
        nursery.cancel_scope.cancel()
    assert len(list(watcher.snapshots[0].records())) == RECORDS


class Checking(MemoryStorage):
    """A disk on which checking and syncing a snapshot lasts until the test ends it."""

    blocks = True

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def install_snapshot(self, snapshot: SnapshotId) -> SnapshotLoaded | SnapshotRefused:
        assert self.go_on.wait(5), "everything else stood still meanwhile"
        return super().install_snapshot(snapshot)


async def test_node_keeps_running_while_a_snapshot_is_installed() -> None:
    storage, watcher = Checking(), Watcher()
    async with fetching(storage, watcher) as quorum:
        await wait_all_tasks_blocked()
        assert quorum.state.installing is not None
        storage.go_on.set()
        await quorum.delivery.wait_delivered(5000)
    assert [s.id for s in watcher.snapshots] == [SnapshotId(5000, 1)]


async def test_snapshot_that_was_replaced_before_its_delivery_is_left_out() -> None:
    """The later one is behind it in the queue: nothing is lost, and nothing fails."""

    watcher, states = Watcher(), list[RaftState]()

    def replace_snapshot() -> None:
        states[0].log.snapshots.clear()
        raise KeyError

    async with fetching(Observed(replace_snapshot), watcher) as quorum:
        states.append(quorum.state)
        await wait_all_tasks_blocked()
        assert quorum.state.log.start_offset == 5000
    assert watcher.snapshots == []
