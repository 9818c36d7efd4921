"""A shard of groups with a list for a log and a number for a clock; no loop, no threads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import attrs

from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.consumer_protocol import ConsumerProtocolSubscription
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest, widen_request
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.coordinator.decision import Decision, Moment
from kwire.coordinator.shard import Phase, Shard, Wait
from kwire.errors import KafkaError, kafka_name
from kwire.group import requests
from kwire.group.consumer import requests as consumer_requests
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.decision_builder import Client
from kwire.group.settings import GroupSettings
from kwire.group.shard import GroupShard
from kwire.group.share.settings import ShareSettings
from kwire.group.streams.settings import StreamsSettings
from kwire.records.control import end_txn_marker
from kwire.records.header import parse
from kwire.replica.transaction_ports import TransactionMarker
from kwire.replica.verification import Guard
from kwire.types import TopicPartition
from tests.support.coordinator.replay import replay_into
from tests.support.group.topics import FakeTopics, topic_id

PARTITION = TopicPartition("__consumer_offsets", 0)
START_MS = 1_700_000_000_000


@attrs.define
class MemoryLog:
    """A log of batches in a list; ``failure`` is the error that the next append raises."""

    batches: list[bytes] = attrs.field(factory=list)
    end: int = 0
    failure: KafkaError | None = None
    max_bytes: int = 1_000_000

    def max_batch_bytes(self, partition: TopicPartition) -> int:
        return self.max_bytes

    def append(self, partition: TopicPartition, batch: bytes, guard: Guard | None = None) -> int:
        if self.failure is not None:
            raise self.failure
        header = parse(batch, 0)
        self.batches.append(self.end.to_bytes(8, "big") + batch[8:])
        self.end += header.last_offset_delta + 1
        return self.end

    def append_marker(self, partition: TopicPartition, marker: TransactionMarker) -> int:
        batch = end_txn_marker(
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=0,
        )
        return self.append(partition, batch)

    @property
    def data(self) -> bytes:
        return b"".join(self.batches)


def subscription(*topics: str) -> bytes:
    """Return the metadata of a consumer that subscribes to these topics."""
    from kwire.codec.compile import encode

    return b"\0\0" + encode(ConsumerProtocolSubscription(topics=list(topics)), 0)


class Consumed(NamedTuple):
    """A response to a ConsumerGroupHeartbeat."""

    epoch: int
    assigned: dict[str, list[int]] | None
    """Partitions by topic; None if the response has no assignment."""


@attrs.define
class Sim:
    """One shard and its clients; a request has a ticket, by which its reply can be read later."""

    settings: GroupSettings = attrs.field(
        factory=lambda: GroupSettings(group_initial_rebalance_delay_ms=0)
    )
    log: MemoryLog = attrs.field(factory=MemoryLog)
    now: float = 0.0
    ids: Any = attrs.field(factory=lambda: count(1))
    topics: FakeTopics = attrs.field(factory=FakeTopics)
    consumer_settings: ConsumerSettings = attrs.field(
        factory=lambda: ConsumerSettings(assignment_interval_ms=0)
    )
    share_settings: ShareSettings = attrs.field(
        factory=lambda: ShareSettings(assignment_interval_ms=0)
    )
    streams_settings: StreamsSettings = attrs.field(
        factory=lambda: StreamsSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0)
    )
    shard: Shard[GroupShard] = attrs.field(init=False)
    waits: dict[int, tuple[str, Wait]] = attrs.field(factory=dict)
    tickets: Iterator[int] = attrs.field(factory=count)

    def __attrs_post_init__(self) -> None:
        self.shard = self.new_shard()
        self.shard.phase = Phase.ACTIVE

    def new_shard(self) -> Shard[GroupShard]:
        machine = GroupShard(
            new_id=lambda: str(next(self.ids)),
            settings=lambda: self.settings,
            topics=lambda: self.topics,
            consumer_settings=lambda _: self.consumer_settings,
            share_settings=lambda _: self.share_settings,
            streams_settings=lambda _: self.streams_settings,
        )
        return Shard(PARTITION, 1, machine)

    @property
    def groups(self) -> GroupShard:
        return self.shard.machine

    @property
    def moment(self) -> Moment:
        return Moment(self.now, START_MS + round(self.now * 1000))

    def perform(self, decision: Decision) -> None:
        try:
            self.shard.perform(decision, self.log, self.moment.wall_ms)
        except KafkaError as error:
            if decision.otherwise is None:
                raise
            self.perform(decision.otherwise(error, self.moment))
            return
        for step in decision.steps:
            self.perform(step(self.moment))

    def send(self, client: str, decide: Callable[[GroupShard, Moment, int], Decision]) -> int:
        """Send a request of a client; return its ticket."""
        ticket = next(self.tickets)
        wait = self.shard.waiting[ticket] = Wait()
        self.waits[ticket] = (client, wait)
        try:
            self.perform(decide(self.groups, self.moment, ticket))
        except KafkaError as error:
            wait.fail(error)
        return ticket

    def reply(self, ticket: int) -> Any:
        """Return the reply to a request, None while it waits; raise its error."""
        _, wait = self.waits[ticket]
        if wait.error is not None:
            raise wait.error
        return wait.reply if wait.answered else None

    def beat(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        topics: Sequence[str] | None = None,
        owned: Mapping[str, Sequence[int]] | None = None,
        group: str = "g",
        client_id: str = "c",
        may_describe: Callable[[str], bool] = lambda _: True,
        **fields: Any,
    ) -> int:
        """Send a ConsumerGroupHeartbeat; ``owned`` maps topics to partitions. Return its ticket."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
            topic_partitions=None
            if owned is None
            else [
                ConsumerGroupHeartbeatRequest.TopicPartitions(
                    topic_id=topic_id(name), partitions=list(numbers)
                )
                for name, numbers in owned.items()
            ],
            **fields,
        )
        client = Client(client_id=client_id, may_describe=may_describe)
        return self.send(
            member_id,
            lambda shard, *when: consumer_requests.heartbeat(shard, request, client, *when),
        )

    def consume(self, member_id: str, epoch: int = 0, **fields: Any) -> Consumed:
        """Send a heartbeat, and return the response; a join subscribes to ``t``."""
        if epoch == 0:
            fields = {"topics": ["t"], "owned": {}, "rebalance_timeout_ms": 60_000, **fields}
        reply = self.reply(self.beat(member_id, epoch, **fields))
        assigned = None
        if reply.assignment is not None:
            assigned = {
                str(self.topics.name_of(each.topic_id)): each.partitions
                for each in reply.assignment.topic_partitions
            }
        return Consumed(reply.member_epoch, assigned)

    def take_answers(self) -> list[tuple[str, Any]]:
        """Return client and answer of the requests answered since the last call."""
        answers = [(t, client, w) for t, (client, w) in self.waits.items() if w.answered]
        for ticket, _, _ in answers:
            del self.waits[ticket]
            self.shard.waiting.pop(ticket, None)
        return [(client, w.error or w.reply) for _, client, w in answers]

    def disconnect(self, client: str) -> None:
        """Close a client's connection: the answers for which it waits are lost."""
        for ticket in [ticket for ticket, (name, _) in self.waits.items() if name == client]:
            del self.waits[ticket]
            del self.shard.waiting[ticket]

    def advance(self, seconds: float) -> None:
        """Let time pass; every deadline fires at its time."""
        end = self.now + seconds
        while self.shard.timers.deadline <= end:
            self.now = max(self.now, self.shard.timers.deadline)
            name = self.shard.timers.pop_due(self.now)
            if name is not None:
                self.perform(self.groups.due(name, self.moment))
        self.now = end

    def fire_due(self) -> None:
        """Fire the deadlines that are due now."""
        self.advance(0)

    def replay(self) -> Shard[GroupShard]:
        """Return a new shard that has replayed the log."""
        shard = self.new_shard()
        replay_into(shard.partition, self.log.data, shard.machine)
        return shard

    def restart(self) -> None:
        """Let another node become the coordinator."""
        self.shard.resign()
        self.shard = self.replay()
        for step in self.groups.on_loaded():
            self.perform(step(self.moment))
        self.shard.phase = Phase.ACTIVE

    # Requests

    def join(
        self,
        client: str,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        kind: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
    ) -> int:
        if protocols is None:
            protocols = {"range": subscription("t")}
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols.items()
            ],
        )
        request = widen_request(request, version)
        sender = Client(client_id=client.rpartition("/")[2])
        return self.send(client, lambda shard, *when: shard.join(request, sender, *when))

    def sync(
        self,
        client: str,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol: str | None = None,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=key, assignment=value)
                for key, value in (assignments or {}).items()
            ],
        )
        return self.send(client, lambda shard, *when: shard.sync(request, *when))

    def heartbeat(
        self,
        client: str,
        member_id: str,
        generation: int,
        *,
        group: str = "g",
        instance: str | None = None,
    ) -> int:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return self.send(client, lambda shard, *when: shard.heartbeat(request, *when))

    def leave(self, client: str, *members: tuple[str, str | None], group: str = "g") -> int:
        request = LeaveGroupRequest(
            group_id=group,
            members=[
                LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance)
                for member, instance in members
            ],
        )
        return self.send(client, lambda shard, *when: shard.leave(request, *when))

    def commit(
        self,
        client: str,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        group: str = "g",
        instance: str | None = None,
        metadata: str | None = "",
        topic_id: bytes = bytes(16),
        retention_ms: int = -1,
    ) -> int:
        by_topic: dict[
            str, list[OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition]
        ] = {}
        for (topic, partition), offset in offsets.items():
            by_topic.setdefault(topic, []).append(
                OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic, topic_id=topic_id, partitions=partitions
                )
                for topic, partitions in by_topic.items()
            ],
        )
        return self.send(client, lambda shard, *when: requests.commit(shard, request, *when))

    def fetch_offsets(self, group: str = "g", *, stable: bool = False) -> dict[str, int]:
        """Return the committed offset, or the error code, of each partition."""
        read = requests.read_offsets(self.groups, group, None, require_stable=stable)
        for _ in read.answer():
            pass
        return {
            f"{topic.name}-{p.partition_index}": p.error_code or p.committed_offset
            for topic in read.topics
            for p in topic.partitions
        }

    def form_group(self, *names: str, group: str = "g") -> dict[str, str]:
        """Make a stable group of these members; return their ids by name."""
        ids = {}
        for name in names:
            ids[name] = self.reply(self.join(name, group=group)).member_id
        waits = {name: self.join(name, ids[name], group=group) for name in names}
        self.advance(self.settings.group_initial_rebalance_delay_ms / 1000)
        for name in names:
            if self.reply(waits[name]) is None:
                raise AssertionError(f"{name} still waits")
        answers = {name: self.reply(waits[name]) for name in names}
        generation = answers[names[0]].generation_id
        assignments = {member: name.encode() for name, member in ids.items()}
        leader = next(n for n in names if answers[n].leader == ids[n])
        for name in sorted(names, key=lambda n: n != leader):
            leaders = assignments if name == leader else None
            self.sync(name, ids[name], generation, leaders, group=group)
        self.take_answers()
        return ids


def error_name(answer: Any) -> str:
    """Return Kafka's name of an answer's error, empty if there is none."""
    from kwire.errors import BY_CODE

    if isinstance(answer, KafkaError):
        return kafka_name(type(answer))
    code = answer.error_code
    return kafka_name(BY_CODE[code]) if code else ""
