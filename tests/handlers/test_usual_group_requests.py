"""Usual requests of group members: answers and groups are those of the general way."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

import attrs
import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import example, given, settings

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.group import usual_requests
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember
from kwire.group.model import ClassicGroup
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared.client_quotas import REQUEST_TIME
from kwire.metrics import REQUESTS
from kwire.net.framing import Disconnect
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.security.authorizer import AclIndex, Authorizer
from kwire.types import CONSUMER_OFFSETS
from kwire.waits import Slow
from simulation.replication.links import join_parts
from tests.support.handlers.broker import read_log, topic_id
from tests.support.handlers.group_node import PARTITIONS, GroupNode, group_node

HEARTBEAT: Final = (12, 4)
OLDER_HEARTBEAT: Final = (12, 3)
"""Before the flexible versions."""
CONSUMER_HEARTBEAT: Final = (68, 1)
COMMITS: Final = ((8, 9), (8, 10))
"""OffsetCommit in the versions that have a usual shape: with names and with ids of topics."""
ROUTES: Final = (HEARTBEAT, OLDER_HEARTBEAT, CONSUMER_HEARTBEAT, *COMMITS)
GROUPS: Final = ("g", "unsynced")
"""The classic groups; the consumer group is ``k``, with the member ``m``."""
CLIENT: Final[dict[str, Any]] = {"client_id": "c", "client_host": "peer"}
SETTINGS: Final = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.session.timeout.ms": "10000",
}


@attrs.define
class Subject:
    """A node with two classic groups and a consumer group, and a client's connection to it."""

    node: GroupNode
    requests: ConnectionRequests
    nursery: trio.Nursery
    lease: SessionLease
    members: dict[str, str] = attrs.field(factory=dict)
    """The first member of each group."""
    epoch: int = 0
    """The epoch in which the consumer group's first member joined."""
    answers: list[bytes | str | None] = attrs.field(factory=list)

    async def send(self, key: int, version: int, request: Any, client: str = "c") -> None:
        frame = request_frame(key, version, 7, client, request)
        try:
            parts = await self.requests.answer(memoryview(frame)[4:])
            self.answers.append(None if parts is None else join_parts(parts))
        except Disconnect as reason:
            self.answers.append(str(reason))

    def consumer(self, member: str) -> ConsumerMember:
        """Return a member of the consumer group; one without an epoch if there is none."""
        groups = self.node.groups
        shard = groups.service._shards[groups.partition_of("k")]
        group = shard.machine.consumer_group("k")
        members = {} if group is None else group.members
        return members.get(member, ConsumerMember(member, epoch=self.epoch))

    def outcome(self) -> tuple[Any, ...]:
        """Return what clients and operators can notice."""
        groups = self.node.groups
        shards = [groups.service._shards[index] for index in range(PARTITIONS)]
        partitions = self.node.broker.replicas.partitions
        return (
            self.answers,
            [shard.timers._at for shard in shards],
            [_without_tickets(shard.machine.groups) for shard in shards],
            [[_fields_of(g) for g in shard.machine.consumer_groups] for shard in shards],
            [shard.machine.offsets for shard in shards],
            [read_log(partitions.get(CONSUMER_OFFSETS, n)) for n in range(PARTITIONS)],
            self.node.broker.services.metrics.total(REQUESTS),
        )


def _without_tickets(groups: dict[str, ClassicGroup]) -> str:
    """Return groups as text; the numbers of their waiting requests differ between the ways."""
    return re.sub(r"ticket=\d+", "ticket=n", repr(groups))


def _fields_of(group: ConsumerGroup) -> dict[str, Any]:
    """Return a group's fields, without the version of the topics, which differs between nodes."""
    fields = attrs.asdict(group, recurse=False)
    del fields["checked_version"]
    return fields


Step: TypeAlias = Callable[[Subject], Awaitable[None]]


async def outcome(steps: list[Step], *, flat: bool, allowed: bool) -> tuple[Any, ...]:
    """Take steps on a new node; return the results that clients and operators notice."""
    authorizer = Authorizer(frozenset(), allows_uncovered=allowed)
    authorizer.replace_index(AclIndex())
    with pytest.MonkeyPatch.context() as patch:
        if not flat:  # The handler of other heartbeats has them decided in one step too.
            patch.setattr(usual_requests, "consumer_heartbeat", lambda *_: None)
        return await _outcome(steps, flat=flat, authorizer=authorizer)


async def _outcome(steps: list[Step], *, flat: bool, authorizer: Authorizer) -> tuple[Any, ...]:
    async with group_node(SETTINGS) as node, trio.open_nursery() as nursery:
        await node.broker.publish(r.FeatureLevelRecord(name="group.version", feature_level=1))
        lease = node.broker.replicas.lease = SessionLease(1e9)
        lease.keep(node.broker.replicas.now())
        services = attrs.evolve(node.broker.services, authorizer=authorizer)
        dispatcher = Dispatcher(services, ListenerType.BROKER)
        for key, version in ROUTES:
            route = await dispatcher.prepare(key, version)
            if not flat:
                dispatcher.routes[key, version] = attrs.evolve(route, flat=None)
        requests = dispatcher.for_connection("A", "peer")
        subject = Subject(node, requests, nursery, lease)
        for group in GROUPS:
            subject.members[group] = (await node.join(group, version=3)).member_id
        await sync(subject)
        subject.epoch = (await node.ask(joining("m"), **CLIENT)).member_epoch
        for step in steps:
            await step(subject)
        nursery.cancel_scope.cancel()
        return subject.outcome()


def joining(member: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    """Return the first heartbeat of a member of the consumer group."""
    chosen: dict[str, Any] = {
        "group_id": "k",
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout_ms": 5_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**(chosen | fields))


async def join_consumer_group(subject: Subject) -> None:
    """Have a second member join, for which the first has to give up partitions."""
    await subject.node.ask(joining("n"), **CLIENT)


async def bump_epoch(subject: Subject) -> None:
    """Have another member (re)join for a topic that does not exist; all others keep theirs."""
    names = [f"none-{len(subject.answers)}"]
    await subject.node.ask(joining("p", subscribed_topic_names=names), **CLIENT)


async def join_by_regex(subject: Subject) -> None:
    fields: dict[str, Any] = {"subscribed_topic_names": None, "subscribed_topic_regex": "[tu]"}
    await subject.node.ask(joining("r", **fields), **CLIENT)


async def add_partition(subject: Subject) -> None:
    """Add a partition to the topic to which the consumer group subscribes."""
    image = subject.node.broker.current.image.topic("t")
    assert image is not None
    partition = r.PartitionRecord(
        partition_id=len(image.partitions),
        topic_id=image.id,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )
    await subject.node.broker.publish(partition)


async def disable_consumer_groups(subject: Subject) -> None:
    level = r.FeatureLevelRecord(name="group.version", feature_level=0)
    await subject.node.broker.publish(level)


async def sync(subject: Subject) -> None:
    request = SyncGroupRequest(
        group_id="g", generation_id=1, member_id=subject.members["g"], assignments=[]
    )
    await subject.node.ask(request, 3)


async def wait_second_joins(subject: Subject) -> None:
    """Have a second member join, which waits for the first to rejoin."""
    subject.nursery.start_soon(partial(subject.node.join, version=3))
    await trio.testing.wait_all_tasks_blocked()


async def end_lease(subject: Subject) -> None:
    subject.lease.end = subject.node.broker.replicas.now()


async def renew_lease(subject: Subject) -> None:
    subject.lease.keep(subject.node.broker.replicas.now())


def sleep(seconds: float) -> Step:
    """Let time pass: a session lasts 10 s, a rebalance 5 s; no sum of sleeps ends at a deadline."""

    async def take(_: Subject) -> None:
        await trio.sleep(seconds)

    return take


def heartbeat(group: str, generation: int, member: str | None, instance: str | None) -> Step:
    """Send a heartbeat of the group's first member, or of the one named."""

    async def send(subject: Subject) -> None:
        member_id = subject.members.get(group, "m") if member is None else member
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        await subject.send(*HEARTBEAT, request)
        await subject.send(*OLDER_HEARTBEAT, request)

    return send


def consumer_heartbeat(
    group: str, member: str, epoch: int | None, client: str, fields: dict[str, Any]
) -> Step:
    """Send a heartbeat of a consumer, by default in its present epoch."""

    async def send(subject: Subject) -> None:
        present = subject.consumer(member)
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=present.epoch if epoch is None else epoch,
            **fields,
        )
        if request.topic_partitions is ALL_ASSIGNED:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=t, partitions=sorted(owned))
                for t, owned in present.assigned.items()
            ]
        await subject.send(*CONSUMER_HEARTBEAT, request, client)

    return send


CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
CommitPartition = CommitTopic.OffsetCommitRequestPartition
ALL_ASSIGNED: Final[list[Any]] = []
"""Stands for the partitions that are assigned to the member that sends a heartbeat."""
Offset: TypeAlias = tuple[str, int, int, str | None]
"""A topic, a partition, an offset and its metadata."""


def commit_of(group: str, member: str, epoch: int, offsets: list[Offset]) -> OffsetCommitRequest:
    topics: dict[str, CommitTopic] = {}
    for name, partition, offset, metadata in offsets:
        topic = topics.setdefault(name, CommitTopic(name=name, topic_id=topic_id(name)))
        topic.partitions.append(
            CommitPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=offset % 3 - 1,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=list(topics.values()),
    )


def commit(
    route: tuple[int, int],
    group: str,
    member: str | None,
    epoch: int | None,
    offsets: list[Offset],
    instance: str | None,
) -> Step:
    """Commit offsets, by default as the group's first member in its first epoch."""

    async def send(subject: Subject) -> None:
        own = "m" if group == "k" else subject.members.get(group, "")
        first = subject.epoch if group == "k" else 1
        request = commit_of(
            group, own if member is None else member, first if epoch is None else epoch, offsets
        )
        request.group_instance_id = instance
        await subject.send(*route, request)

    return send


OFFSETS: Final = st.lists(
    st.tuples(
        st.sampled_from(["t", "t", "t", "u", "x", ""]),
        st.sampled_from([0, 0, 1, 2, 7]),
        st.integers(0, 5),
        st.sampled_from([None, "", "text", "m" * 100, "m" * 5000]),
    ),
    max_size=3,
) | st.just([("t", 0, 5, "")])
OFFSET_COMMITS: Final = st.builds(
    commit,
    st.sampled_from(COMMITS),
    st.sampled_from(["g", "g", "k", "k", "unsynced", "x", ""]),
    st.sampled_from([None, None, None, "", "stranger"]),
    st.sampled_from([None, None, None, -1, 0, 1, 2, 3]),
    OFFSETS,
    st.sampled_from([None, None, None, "i"]),
)
CONSUMER_HEARTBEATS: Final = st.builds(
    consumer_heartbeat,
    st.sampled_from(["k", "k", "k", "g", "x", " "]),
    st.sampled_from(["m", "m", "m", "n", "r", "x", " ", "m" * 200]),
    st.sampled_from([None, None, None, 0, 1, 2, 3, 4, -1, -2]),
    st.sampled_from(["c", "c", "c", "other"]),
    st.sampled_from(
        [
            {},
            {},
            {},
            {},
            {"rebalance_timeout_ms": 5_000},
            {"rebalance_timeout_ms": 6_000},
            {"subscribed_topic_names": ["u"]},
            {"topic_partitions": []},
            {"topic_partitions": ALL_ASSIGNED},
            {"topic_partitions": ALL_ASSIGNED},
            {"instance_id": "i"},
            {"rack_id": "rack"},
            {"server_assignor": "range"},
        ]
    ),
)
HEARTBEATS: Final = st.builds(
    heartbeat,
    st.sampled_from(["g", "g", "g", "unsynced", "x", ""]),
    st.sampled_from([1, 1, 1, 0, 2, -1]),
    st.sampled_from([None, None, None, "stranger", ""]),
    st.sampled_from([None, None, None, "i"]),
)
EVENTS: Final = st.sampled_from(
    [
        wait_second_joins,
        join_consumer_group,
        bump_epoch,
        bump_epoch,
        bump_epoch,
        join_by_regex,
        add_partition,
        disable_consumer_groups,
        end_lease,
        renew_lease,
        sleep(1.13),
        sleep(4.37),
        sleep(6.71),
        sleep(9.53),
    ]
)


KEEPING: Final = [
    consumer_heartbeat("k", member, None, "c", fields)
    for member in ("m", "p")
    for fields in ({}, {"topic_partitions": ALL_ASSIGNED})
]
"""Heartbeats of members that keep their partitions after another one has changed the group."""
STEPS: Final = st.lists(
    HEARTBEATS | CONSUMER_HEARTBEATS | st.sampled_from(KEEPING) | OFFSET_COMMITS | EVENTS,
    max_size=12,
)


@example(
    steps=[bump_epoch, sleep(1.13), *KEEPING[:2], bump_epoch, sleep(4.37), *KEEPING[1:]],
    allowed=True,
)
@example(steps=[commit(COMMITS[0], "g", None, 2, [("t", 0, 5, "")], None)], allowed=True)
@given(STEPS, st.sampled_from([True, True, False]))
@settings(max_examples=60)
def test_usual_requests_have_the_outcome_of_the_general_way(
    steps: list[Step], allowed: bool
) -> None:
    flat, general = [
        trio.run(
            partial(outcome, steps, flat=flat, allowed=allowed),
            clock=trio.testing.MockClock(autojump_threshold=0),
        )
        for flat in (True, False)
    ]
    assert flat == general


async def member_of(node: GroupNode) -> HeartbeatRequest:
    """Return the heartbeat of the only member of a stable classic group."""
    member = (await node.join(version=3)).member_id
    identity: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": member}
    await node.ask(SyncGroupRequest(assignments=[], **identity), 3)
    return HeartbeatRequest(**identity)


async def consumer_of(node: GroupNode) -> ConsumerGroupHeartbeatRequest:
    """Return the heartbeat of the only member of a consumer group."""
    await node.broker.publish(r.FeatureLevelRecord(name="group.version", feature_level=1))
    joined = await node.ask(joining("m"), **CLIENT)
    return ConsumerGroupHeartbeatRequest(
        group_id="k", member_id="m", member_epoch=joined.member_epoch
    )


KINDS: Final = pytest.mark.parametrize(
    ("route", "make"),
    [
        (HEARTBEAT, member_of),
        (OLDER_HEARTBEAT, member_of),
        (CONSUMER_HEARTBEAT, consumer_of),
    ],
)


@asynccontextmanager
async def heartbeats(
    route: tuple[int, int], make: Callable[[GroupNode], Awaitable[Any]]
) -> AsyncIterator[tuple[GroupNode, Any, ConnectionRequests, memoryview]]:
    """Yield a node, its member's heartbeat, a connection, and the heartbeat's frame."""
    async with group_node(SETTINGS) as node:
        request = await make(node)
        dispatcher = Dispatcher(node.broker.services, ListenerType.BROKER)
        await dispatcher.prepare(*route)
        frame = memoryview(request_frame(*route, 7, "c", request))[4:]
        yield node, request, dispatcher.for_connection("A", "peer"), frame


def code_of(route: tuple[int, int], parts: Any) -> int:
    _, response = read_response(*route, join_parts(parts)[4:])
    code: int = response.error_code
    return code


@KINDS
async def test_member_whose_heartbeats_are_usual_keeps_its_session(
    route: tuple[int, int], make: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with heartbeats(route, make) as (_, _, requests, frame):
        for _ in range(4):
            await trio.sleep(9)
            assert code_of(route, requests.answer_now(frame)) == 0
        await trio.sleep(11)
        assert code_of(route, await requests.answer(frame)) == 25


@KINDS
async def test_heartbeat_waits_until_the_records_of_its_group_are_committed(
    route: tuple[int, int], make: Any
) -> None:
    """Another leader might not have the generation or epoch that the answer confirms."""
    async with heartbeats(route, make) as (node, request, requests, frame):
        index = node.groups.partition_of(request.group_id)
        log = node.broker.replicas.partitions.get(CONSUMER_OFFSETS, index).log
        log.high_watermark -= 1
        assert isinstance(requests.answer_now(frame), Slow)
        log.high_watermark += 1
        assert isinstance(requests.answer_now(frame), list)


@KINDS
async def test_heartbeat_reports_the_throttle_time(
    route: tuple[int, int], make: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with heartbeats(route, make) as (node, _, requests, frame):
        entity = r.ClientQuotaRecord.EntityData(entity_type="client-id", entity_name="c")
        quota = r.ClientQuotaRecord(entity=[entity], key=REQUEST_TIME, value=50.0, remove=False)
        await node.broker.publish(quota)
        ticks = count()
        requests._now = lambda: next(ticks) * 6.0
        parts = requests.answer_now(frame)
        assert isinstance(parts, list)
        _, response = read_response(*route, join_parts(parts)[4:])
        assert response.error_code == 0
        assert response.throttle_time_ms == requests.muted_s * 1000 > 0


async def test_consumer_learns_of_its_new_target() -> None:
    """The target changes when another member joins; the epoch of the first one is still valid."""
    async with heartbeats(CONSUMER_HEARTBEAT, consumer_of) as (node, _, requests, frame):
        assert isinstance(requests.answer_now(frame), list)
        await node.ask(joining("n"), **CLIENT)
        parts = await requests.answer(frame)
        assert parts is not None
        _, response = read_response(*CONSUMER_HEARTBEAT, join_parts(parts)[4:])
        (topic,) = response.assignment.topic_partitions
        assert len(topic.partitions) < 3


@pytest.mark.parametrize("owned", [None, [0, 1, 2]])
async def test_member_that_keeps_its_partitions_learns_of_its_epoch_once_that_is_committed(
    owned: list[int] | None,
) -> None:
    async with heartbeats(CONSUMER_HEARTBEAT, consumer_of) as (node, request, requests, _):
        index = node.groups.partition_of("k")
        partition = node.broker.replicas.partitions.get(CONSUMER_OFFSETS, index)
        follower = r.PartitionChangeRecord(
            partition_id=index, topic_id=topic_id(CONSUMER_OFFSETS), replicas=[1, 2], isr=[1, 2]
        )
        await node.broker.publish(follower)

        async def follow(condition: Callable[[], bool]) -> None:
            await trio.testing.wait_all_tasks_blocked()
            assert not condition()
            end = partition.log.end_offset
            node.broker.replicas.on_follower_fetched(
                partition, 2, offset=end, log_start=0, broker_epoch=-1
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(node.ask, joining("n", subscribed_topic_names=["none"]), **CLIENT)
            )
            await follow(lambda: False)
        if owned is not None:
            shape = ConsumerGroupHeartbeatRequest.TopicPartitions
            request.topic_partitions = [shape(topic_id=topic_id("t"), partitions=owned)]
        frame = memoryview(request_frame(*CONSUMER_HEARTBEAT, 7, "c", request))[4:]
        answer = requests.answer_now(frame)
        assert isinstance(answer, Slow)
        epochs: list[int] = []

        async def finish() -> None:
            parts = await answer.finish()
            assert isinstance(parts, list)
            _, response = read_response(*CONSUMER_HEARTBEAT, join_parts(parts)[4:])
            assert (response.error_code, response.assignment) == (0, None)
            epochs.append(response.member_epoch)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            await follow(lambda: bool(epochs))
        assert epochs == [request.member_epoch + 1]


@pytest.mark.parametrize("route", COMMITS)
async def test_usual_commit_is_answered_at_once(route: tuple[int, int]) -> None:
    async with group_node() as node:
        member = await member_of(node)
        dispatcher = Dispatcher(node.broker.services, ListenerType.BROKER)
        await dispatcher.prepare(*route)
        requests = dispatcher.for_connection("A", "peer")
        request = commit_of("g", member.member_id, 1, [("t", 0, 5, "m"), ("t", 2, 6, None)])
        parts = requests.answer_now(memoryview(request_frame(*route, 7, "c", request))[4:])
        assert isinstance(parts, list)
        _, response = read_response(*route, join_parts(parts)[4:])
        answers = response.topics[0].partitions
        assert [(each.partition_index, each.error_code) for each in answers] == [(0, 0), (2, 0)]
        assert await node.fetch({"t": [0, 1, 2]}) == {"t": {0: 5, 1: -1, 2: 6}}


@pytest.mark.parametrize("is_lost", [False, True])
async def test_usual_commit_waits_until_its_record_is_committed(is_lost: bool) -> None:
    """It fails for all partitions if another broker leads meanwhile."""
    route = COMMITS[0]
    async with group_node() as node:
        member = await member_of(node)
        index = node.groups.partition_of("g")
        follower = r.PartitionChangeRecord(
            partition_id=index, topic_id=topic_id(CONSUMER_OFFSETS), replicas=[1, 2], isr=[1, 2]
        )
        await node.broker.publish(follower)
        dispatcher = Dispatcher(node.broker.services, ListenerType.BROKER)
        await dispatcher.prepare(*route)
        requests = dispatcher.for_connection("A", "peer")
        request = commit_of("g", member.member_id, 1, [("t", 0, 5, ""), ("t", 1, 5, "")])
        answer = requests.answer_now(memoryview(request_frame(*route, 7, "c", request))[4:])
        assert isinstance(answer, Slow)
        codes: list[int] = []

        async def finish() -> None:
            parts = await answer.finish()
            assert isinstance(parts, list)
            _, response = read_response(*route, join_parts(parts)[4:])
            codes.extend(each.error_code for each in response.topics[0].partitions)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            await trio.testing.wait_all_tasks_blocked()
            assert not codes
            partition = node.broker.replicas.partitions.get(CONSUMER_OFFSETS, index)
            if is_lost:
                await node.broker.publish(
                    r.PartitionChangeRecord(
                        partition_id=index, topic_id=topic_id(CONSUMER_OFFSETS), leader=2
                    )
                )
            else:
                end = partition.log.end_offset
                node.broker.replicas.on_follower_fetched(
                    partition, 2, offset=end, log_start=0, broker_epoch=-1
                )
        assert codes == [16 if is_lost else 0] * 2
