"""A coordinator of groups over a log in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

import attrs
import trio
import trio.lowlevel
import trio.testing

from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
)
from kwire.group.coordinator import GroupCoordinator
from kwire.group.decision_builder import Client
from kwire.group.settings import GroupSettings
from kwire.group.shard import GroupShard
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.records.control import end_txn_marker
from kwire.records.header import parse
from kwire.replica.transaction_ports import TransactionMarker
from kwire.replica.verification import Guard
from kwire.types import TopicPartition
from kwire.waits import Slow
from tests.support.clock import Clock, JumpingClock
from tests.support.group.topics import FakeTopics

T = TypeVar("T")
CommitPartition = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition


@attrs.define(eq=False)
class FakeLog:
    """Partitions in memory; the high watermark follows at once while no replica lags."""

    data: dict[int, list[bytes]] = attrs.field(factory=dict)
    """The batches by partition."""
    ends: dict[int, int] = attrs.field(factory=dict)
    high_watermarks: dict[int, int] = attrs.field(factory=dict)
    replicas_lag: bool = False
    failure: KafkaError | None = None
    """The error of the next appends."""
    room: int | None = None
    """The number of batches that still fit on the disk; None without a limit."""
    changed: trio.Event = attrs.field(factory=trio.Event)
    is_leader: bool = True
    lease: SessionLease = attrs.field(factory=lambda: SessionLease(9.0))
    read_delay: float = 0.0
    read_failures: list[Exception] = attrs.field(factory=list)
    page_batches: int = 7
    max_bytes: int = 1_048_588

    @property
    def is_lease_over(self) -> bool:
        return self.lease.is_over(trio.current_time())

    @property
    def lease_left_s(self) -> float:
        return self.lease.left_s(trio.current_time())

    @property
    def lease_over_s(self) -> float:
        return self.lease.over_s(trio.current_time())

    def max_batch_bytes(self, partition: TopicPartition) -> int:
        return self.max_bytes

    def append(self, partition: TopicPartition, stored: bytes, guard: Guard | None = None) -> int:
        if self.failure is not None:
            raise self.failure
        if self.room is not None:
            if not self.room:
                raise KafkaStorageError
            self.room -= 1
        index = partition.partition
        base = self.ends.get(index, 0)
        header = parse(stored, 0)
        self.data.setdefault(index, []).append(base.to_bytes(8, "big") + stored[8:])
        self.ends[index] = base + header.last_offset_delta + 1
        if not self.replicas_lag:
            self.high_watermarks[index] = self.ends[index]
        return self.ends[index]

    def append_marker(self, partition: TopicPartition, marker: TransactionMarker) -> int:
        batch = end_txn_marker(
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=0,
        )
        return self.append(partition, batch)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        return 0, self.ends.get(partition.partition, 0)

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.high_watermarks.get(partition.partition, 0)

    async def wait_committed(self, partition: TopicPartition, end_offset: int) -> None:
        while self.high_watermark(partition) < end_offset:
            await self.changed.wait()
            if not self.is_leader:
                raise NotLeaderOrFollower

    async def read(self, partition: TopicPartition, offset: int) -> bytes:
        await trio.sleep(self.read_delay)
        if self.read_failures:
            raise self.read_failures.pop()
        batches = [
            stored
            for stored in self.data.get(partition.partition, [])
            if parse(stored, 0).next_offset > offset
        ]
        return b"".join(batches[: self.page_batches])

    def catch_up(self) -> None:
        """Let the replicas catch up, so that the high watermarks reach the log ends."""
        self.replicas_lag = False
        self.high_watermarks = dict(self.ends)
        self.wake()

    def resign(self) -> None:
        """Lose the leadership: the waits for commits fail."""
        self.is_leader = False
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


def member_ids() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield str(number)


@attrs.define(eq=False)
class Node:
    """A group coordinator and the log that it writes."""

    log: FakeLog
    service: CoordinatorRuntime[GroupShard]
    groups: GroupCoordinator
    settings: GroupSettings


def no_share_groups() -> NoReturn:
    raise AssertionError("these tests have no share groups")


def no_tasks(task: Callable[[], Awaitable[None]]) -> NoReturn:
    raise AssertionError("these tests have no tasks in the background")


def make_node(
    log: FakeLog | None = None, clock: Clock | JumpingClock | None = None, **overrides: int
) -> Node:
    """Return a node that leads no partition yet; with the log of another one as its successor."""
    log = log or FakeLog()
    settings = GroupSettings(
        **{"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 4} | overrides
    )
    ids = member_ids()
    service = CoordinatorRuntime(
        topic="__consumer_offsets",
        log=log,
        clock=clock or Clock(),
        make=lambda _: GroupShard(new_id=lambda: next(ids), settings=lambda: settings),
    )
    groups = GroupCoordinator(
        service=service,
        settings=lambda: settings,
        partitions=lambda: settings.offsets_topic_num_partitions,
        topics=FakeTopics,
        share_ports=no_share_groups,
        spawn=no_tasks,
        clock=service.clock,
    )
    return Node(log, service, groups, settings)


@asynccontextmanager
async def loaded_successor(log: FakeLog, index: int) -> AsyncIterator[Node]:
    """Run the next coordinator of a partition of this log, once it has loaded the partition."""
    successor = make_node(log)
    async with trio.open_nursery() as nursery:
        await nursery.start(successor.service.run)
        successor.service.on_elected(index, 2)
        while successor.service.loading:
            await trio.lowlevel.checkpoint()
        yield successor
        nursery.cancel_scope.cancel()


def join_request(
    member_id: str = "", *, session_ms: int = 10_000, group: str = "g"
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        knows_member_id_required=False,
    )


def commit_request(offset: int, group: str = "g") -> OffsetCommitRequest:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[
            CommitPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        ],
    )
    return OffsetCommitRequest(group_id=group, member_id="", topics=[topic])


async def fetch_offset(node: Node, group: str = "g") -> int:
    """Return the committed offset of the partition t-0."""
    (topic,) = await node.groups.fetch(group, [("t", [0])], require_stable=True)
    return topic.partitions[0].committed_offset


CLIENT = Client(client_id="c")


async def wait_result(result: Slow[T] | T) -> T:
    """Return the result of a request, awaiting it if necessary."""
    return await result.finish() if isinstance(result, Slow) else result
