"""Quorums for tests: one node in memory that leads at once, and a recording listener."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import attrs
import trio

from kwire.raftmeta.delivery import LeaderAndEpoch, RecordListener
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.raftmeta.storage.storage import MetadataStorage
from simulation.raft.memory_storage import MemoryStorage

WALL_MS = 1_700_000_000_000


class TestClock:
    """trio's clock (which a test may mock), and a wall clock that advances with it."""

    __test__ = False

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return WALL_MS + int(trio.current_time() * 1000) % 1_000_000_000

    def suspended_s(self) -> float:
        return 0.0


@attrs.define
class Watcher:
    """A quorum listener that records what it receives."""

    batches: list[CommittedBatch] = attrs.field(factory=list)
    snapshots: list[SnapshotReader] = attrs.field(factory=list)
    leaders: list[LeaderAndEpoch] = attrs.field(factory=list)

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        self.batches += batches

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self.snapshots.append(reader)

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        self.leaders.append(leader)

    def watch(self, quorum: RaftService) -> None:
        """Receive what a quorum delivers, from the next record on."""
        quorum.add_record_listener(self)
        quorum.add_leadership_listener(self)


def directory_of(node_id: int) -> bytes:
    """Return a directory id derived from a node id."""
    return bytes(12) + node_id.to_bytes(4, "big")


def config_of(node_id: int, **changes: object) -> RaftConfig:
    config = RaftConfig(
        node_id=node_id,
        directory_id=directory_of(node_id),
        cluster_id="test-cluster",
        endpoints=(VoterEndpoint("CONTROLLER", f"node-{node_id}", 9093),),
        listener="CONTROLLER",
    )
    return attrs.evolve(config, **changes)  # type: ignore[arg-type]


def voters_of(*node_ids: int) -> VoterSet:
    """Return configured voters, as ``controller.quorum.voters`` names them."""
    return VoterSet.of(
        Voter(ReplicaKey(n), (VoterEndpoint("CONTROLLER", f"node-{n}", 9093),)) for n in node_ids
    )


@asynccontextmanager
async def quorum_of_one(
    *listeners: RecordListener, storage: MetadataStorage | None = None
) -> AsyncIterator[RaftService]:
    """Run a quorum of only node 1 inside the context; the node leads after its first turn."""
    quorum = RaftService(
        config_of(1),
        storage or MemoryStorage(),
        clock=TestClock(),
        random=Random(1),
        configured=voters_of(1),
    )
    for listener in listeners:
        if isinstance(listener, Watcher):
            listener.watch(quorum)
        else:
            quorum.add_record_listener(listener)
    async with trio.open_nursery() as nursery:
        await nursery.start(quorum.run)
        try:
            yield quorum
        finally:
            nursery.cancel_scope.cancel()
