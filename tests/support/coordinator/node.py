"""A coordinator of groups over a log in memory."""

from collections.abc import Iterator

import attrs
import trio
import trio.lowlevel
import trio.testing

from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.coordinator.service import CoordinatorService
from kwire.errors import (
    KafkaError,
    NotLeaderOrFollower,
)
from kwire.group.decision_builder import Client
from kwire.group.service import GroupCoordinator
from kwire.group.settings import GroupSettings
from kwire.group.shard import GroupShard
from kwire.records.header import parse
from kwire.types import TopicPartition

Spot = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition


class Clock:
    now = staticmethod(trio.current_time)

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1000)


@attrs.define(eq=False)
class FakeLog:
    """Partitions in memory; the high watermark follows at once unless ``held``."""

    data: dict[int, list[bytes]] = attrs.field(factory=dict)
    ends: dict[int, int] = attrs.field(factory=dict)
    marks: dict[int, int] = attrs.field(factory=dict)
    held: bool = False
    failure: KafkaError | None = None
    moved: trio.Event = attrs.field(factory=trio.Event)
    gone: bool = False
    read_delay: float = 0.0
    read_failures: list[Exception] = attrs.field(factory=list)
    page_batches: int = 7
    max_bytes: int = 1_048_588

    def max_batch_bytes(self, partition: TopicPartition) -> int:
        return self.max_bytes

    def append(self, partition: TopicPartition, stored: bytes) -> int:
        if self.failure is not None:
            raise self.failure
        index = partition.partition
        base = self.ends.get(index, 0)
        header = parse(stored, 0)
        self.data.setdefault(index, []).append(base.to_bytes(8, "big") + stored[8:])
        self.ends[index] = base + header.last_offset_delta + 1
        if not self.held:
            self.marks[index] = self.ends[index]
        return self.ends[index]

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        return 0, self.ends.get(partition.partition, 0)

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.marks.get(partition.partition, 0)

    async def wait_committed(self, partition: TopicPartition, end_offset: int) -> None:
        while self.high_watermark(partition) < end_offset:
            await self.moved.wait()
            if self.gone:
                raise NotLeaderOrFollower

    async def read(self, partition: TopicPartition, offset: int) -> bytes:
        await trio.sleep(self.read_delay)
        if self.read_failures:
            raise self.read_failures.pop()
        waiting = [
            stored
            for stored in self.data.get(partition.partition, [])
            if parse(stored, 0).next_offset > offset
        ]
        return b"".join(waiting[: self.page_batches])

    def release(self) -> None:
        """Replicas have caught up."""
        self.held = False
        self.marks = dict(self.ends)
        self.wake()

    def wake(self) -> None:
        self.moved.set()
        self.moved = trio.Event()


def ids() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield str(number)


@attrs.define(eq=False)
class Node:
    log: FakeLog
    service: CoordinatorService[GroupShard]
    groups: GroupCoordinator
    settings: GroupSettings


def node(log: FakeLog | None = None, **settings: int) -> Node:
    log = log or FakeLog()
    chosen = GroupSettings(
        **{"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 4} | settings
    )
    names = ids()
    service = CoordinatorService(
        topic="__consumer_offsets",
        log=log,
        clock=Clock(),
        make=lambda _: GroupShard(new_id=lambda: next(names), settings=lambda: chosen),
    )
    groups = GroupCoordinator(
        service=service,
        settings=lambda: chosen,
        partitions=lambda: chosen.offsets_topic_num_partitions,
    )
    return Node(log, service, groups, chosen)


def joining(member_id: str = "", *, session_ms: int = 10_000, group: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        knows_member_id_required=False,
    )


def committing(offset: int, group: str = "g") -> OffsetCommitRequest:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[Spot(partition_index=0, committed_offset=offset, committed_metadata="")],
    )
    return OffsetCommitRequest(group_id=group, member_id="", topics=[topic])


async def fetched(of: Node, group: str = "g") -> int:
    (topic,) = await of.groups.fetch(group, [("t", [0])], require_stable=True)
    return topic.partitions[0].committed_offset


OLD = Client(client_id="c")
