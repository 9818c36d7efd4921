"""Snapshots of the leader that arrive while this node still writes or delivers older data."""

import threading
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import trio
from trio.testing import wait_all_tasks_blocked

from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.codec.messages.metadata_records import TopicRecord
from kwire.raftmeta.delivery import DELIVERY_BYTES
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import CleanLog, SnapshotLoaded, SnapshotRefused, SnapshotTaken
from kwire.raftmeta.raft.log_state import NeedsSnapshot, SnapshotId, Valid
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.storage.records import pack, snapshot_chunks
from kwire.records.build import New, batch
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, Watcher, config_of, voters_of
from tests.support.raftmeta.one_node import answer, dynamic, follower, sends
from tests.support.raftmeta.snapshot_leader import LeaderOfMany

if TYPE_CHECKING:
    pass


def test_own_snapshot_older_than_an_installed_one_is_dropped() -> None:
    """It was written while a later one was fetched: it must not become the oldest one."""
    raft = follower(voters=dynamic(1, 2, 3), kraft_version=1)
    state = raft.state
    state.advance_high_watermark(5)
    fetched = SnapshotId(40, 2)
    state.installing = fetched
    raft.step(SnapshotLoaded(fetched, dynamic(1, 3, 4), 1), 0.2, 0)
    effects = raft.step(SnapshotTaken(SnapshotId(5, 1)), 0.3, 0)
    assert state.log.snapshots == [fetched]
    assert not isinstance(state.log.validate(5, 1), Valid)
    assert CleanLog(40) in effects  # which removes it from the disk


class SlowStorage(MemoryStorage):
    """Storage on which the sync of an installed snapshot lasts until the test ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.is_installed = False

    def install_snapshot(self, snapshot: SnapshotId) -> SnapshotLoaded | SnapshotRefused:
        self.is_installed = True
        return super().install_snapshot(snapshot)

    def start_sync(self) -> Callable[[], None] | None:
        return self.sync if self.is_installed else None

    def sync(self) -> None:
        assert self.go_on.wait(60)
        self.is_installed = False


async def test_log_replaced_during_its_delivery_is_delivered_as_the_snapshot() -> None:
    count = 600
    value = pack(TopicRecord(name="x" * (DELIVERY_BYTES // 3), topic_id=bytes(16)))
    log = b"".join(
        batch([New(None, value)] * 3, timestamp_ms=0, base_offset=n, leader_epoch=1)
        for n in range(0, count, 3)
    )
    later = SnapshotId(count + 100, 1)
    content = b"".join(
        snapshot_chunks(
            later, [], voters=voters_of(1), kraft_version=0, last_timestamp_ms=0, now_ms=0
        )
    )
    storage, watcher = SlowStorage(), Watcher()
    storage.election = ElectionState(1, 1)
    quorum = RaftService(
        config_of(2, fetch_timeout_s=1000.0, request_timeout_s=1000.0),
        storage,
        clock=TestClock(),
        random=Random(1),
        configured=voters_of(1, 2, 3),
        peers=LeaderOfMany(log, count, later, content),
    )
    watcher.watch(quorum)
    async with trio.open_nursery() as nursery:
        await nursery.start(quorum.run)
        await wait_all_tasks_blocked()
        assert storage.is_installed
        assert quorum.delivery.end_offset < count, "nothing was left to deliver"
        storage.go_on.set()
        await quorum.delivery.wait_delivered(later.end_offset)
        assert [s.id for s in watcher.snapshots] == [later]
        nursery.cancel_scope.cancel()


def test_empty_snapshot_chunk_is_not_fetched_again_at_once() -> None:
    raft = follower()
    later = SnapshotId(40, 2)
    where = messages.fetch_response(raft.state, validation=NeedsSnapshot(later))
    answer(raft, FetchRequest, 2, where, 0.2)
    response = messages.snapshot_response(raft.state, later, piece=b"")
    response.topics[0].partitions[0].size = 100
    effects = answer(raft, FetchSnapshotRequest, 2, response, 0.3)
    assert not sends(effects, FetchSnapshotRequest)
