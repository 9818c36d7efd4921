"""Snapshots of the metadata: when they are written, and which part of the log is then deleted."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire.codec.messages.metadata_records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    TopicRecord,
)
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.metadata.snapshot_cadence import SnapshotCadence
from kwire.raftmeta.metadata.snapshotter import Snapshotter
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.storage import MetadataStorage
from simulation.disk import SimDisk
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, config_of, voters_of
from simulation.raft.quorums import Watcher as Listener


def test_snapshot_is_due_after_max_bytes() -> None:
    cadence = SnapshotCadence(max_bytes=100, max_seconds=10)
    assert not cadence.due(0)
    cadence.on_commit(99, 0)
    assert not cadence.due(9.9)
    cadence.on_commit(1, 1)
    assert cadence.due(1)
    cadence.on_snapshot()
    assert not cadence.due(100)


def test_snapshot_is_due_after_max_seconds_only_if_records_were_written() -> None:
    cadence = SnapshotCadence(max_bytes=100, max_seconds=10)
    assert cadence.deadline == math.inf
    cadence.on_commit(1, 5)
    cadence.on_commit(1, 14)
    assert cadence.deadline == 15
    assert cadence.due(15)
    cadence.on_snapshot()
    assert cadence.deadline == math.inf


def test_interval_of_zero_disables_timed_snapshots() -> None:
    cadence = SnapshotCadence(max_bytes=100, max_seconds=0)
    cadence.on_commit(1, 5)
    assert cadence.deadline == math.inf


class Node:
    """A quorum of one with its image and its snapshots."""

    def __init__(self, storage: MetadataStorage, **limits: float) -> None:
        self.clock = TestClock()
        self.quorum = RaftService(
            config_of(1), storage, clock=self.clock, random=Random(1), configured=voters_of(1)
        )
        self.publisher = MetadataPublisher()
        self.quorum.add_record_listener(self.publisher)
        self.listener = Listener()
        self.quorum.add_record_listener(self.listener)
        cadence = SnapshotCadence(
            max_bytes=int(limits.get("max_bytes", 1 << 40)),
            max_seconds=limits.get("max_seconds", 3600),
        )
        self.snapshotter = Snapshotter(self.quorum, self.publisher, cadence, self.clock)

    async def wait_added(self, *records: MetadataRecord) -> None:
        commit = self.quorum.append_nowait(records, self.quorum.leader().epoch)
        await commit.wait()


@asynccontextmanager
async def running_node(storage: MetadataStorage, **limits: float) -> AsyncIterator[Node]:
    node = Node(storage, **limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        await nursery.start(node.snapshotter.run)
        while not node.quorum.leader().is_active:
            await trio.lowlevel.checkpoint()
        yield node
        nursery.cancel_scope.cancel()


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"topic-{number}", topic_id=number.to_bytes(16, "big"))


async def test_a_change_is_in_a_snapshot_within_the_interval(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with running_node(storage) as node:
        await node.wait_added(topic(1))
        await trio.sleep(3599)
        assert not storage.snapshots
        await trio.sleep(2)
        assert [s.end_offset for s in storage.snapshots] == [node.quorum.next_offset]
        await trio.sleep(50_000)
        assert len(storage.snapshots) == 1, "nothing changed"


async def test_no_snapshot_within_a_metadata_transaction(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with running_node(storage) as node:
        await node.wait_added(BeginTransactionRecord(), topic(1))
        await trio.sleep(10_000)
        assert not storage.snapshots
        await node.wait_added(EndTransactionRecord())
        await wait_all_tasks_blocked()
        assert [s.end_offset for s in storage.snapshots] == [node.quorum.next_offset]


class InlineDisk(DiskStorage):
    """A disk without threads, for which the tests' clock would not wait."""

    blocks = False


def disk_storage(disk: SimDisk) -> DiskStorage:
    return InlineDisk(disk, now_ms=0)


@pytest.mark.parametrize("end", ["clean stop", "kill", "power loss"])
async def test_many_changes_leave_a_short_log(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def inline(call, *args):
        await trio.lowlevel.checkpoint()
        return call(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    disk = SimDisk()
    async with running_node(disk_storage(disk), max_bytes=4_000) as node:
        for number in range(600):
            await node.wait_added(topic(number))
        image = node.publisher.image
        crashes = {"kill": disk.after_kill, "power loss": lambda: disk.power_loss(Random(3))}
        disk = crashes[end]() if end in crashes else disk
    names = sorted(entry.name for entry in disk.entries("__cluster_metadata-0"))
    assert len([n for n in names if n.endswith(".checkpoint")]) == 2, names
    assert len([n for n in names if n.endswith(".log")]) <= 3, names
    assert "00000000000000000000.log" not in names
    async with running_node(disk_storage(disk), max_bytes=4_000) as node:
        assert node.publisher.image.topics == image.topics
        assert len(node.listener.snapshots) == 1
        assert len(node.listener.batches) < 200, "what the snapshot holds is not replayed"
        await node.wait_added(topic(1000))
        assert len(node.publisher.image.topics) == 601
