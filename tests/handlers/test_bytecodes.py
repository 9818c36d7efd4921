"""The cost of usual requests, in bytecodes: what kwire executes from a frame to its answer.

See :mod:`tests.support.handlers.bytecodes` for what is counted. The figures are those of CPython
3.11, which runs more bytecodes for the same source than later versions: with these the figure is
only an upper bound. After a change of a figure on purpose, write the new one here and in
``docs/performance.md``.
"""

import itertools
import math
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import attrs
import pytest
import trio
import trio.testing

from kwire.clock import SystemClock
from kwire.codec.frame import response_parts
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.errors import NONE
from kwire.log import disk
from kwire.log.disk import RealDisk
from kwire.net.connection_pool import Network
from kwire.replica import fetch_sessions
from kwire.replica.partition import Partition
from kwire.testing.wire import TrioWireClient
from simulation.disk import SimDisk
from tests.support.handlers.broker import (
    NODE,
    Broker,
    broker,
    create_topic,
    one_batch,
    topic_id,
    write,
)
from tests.support.handlers.bytecodes import (
    REQUESTS,
    Make,
    Tracer,
    ask,
    cost,
    frame_of,
    median,
    response_of,
    serve,
)
from tests.support.handlers.fetch import Topic, at
from tests.support.handlers.fetch import request as fetch_request
from tests.support.handlers.group_node import GroupNode, group_node
from tests.support.handlers.transactions import ScriptedVerifier

TOLERANCE: Final = 0.02
FIGURES: Final = {
    "Produce, acks=1": 1748,
    "Produce, acks=1, ten partitions": 10190,
    "Produce, acks=all, idempotent": 1915,
    "Produce, acks=all, in a transaction": 2344,
    "Produce that begins to wait for a follower": 2377,
    "Produce that is committed": 958,
    "Fetch at the tail": 2544,
    "Fetch at the tail, read_committed": 2633,
    "Fetch of 8 partitions, two with records": 6434,
    "Fetch in a session, one partition with records": 2838,
    "Fetch in a session that names nothing": 2732,
    "Fetch that begins to wait": 2017,
    "Fetch that is woken": 2546,
    "Fetch that is woken with 19 others": 1756,
    "Fetch of 20 partitions that begins to wait": 11192,
    "Fetch of 20 partitions that is woken": 6422,
    "Copy of a record to a follower": 9587,
    "Heartbeat": 1114,
    "ConsumerGroupHeartbeat": 1339,
    "ConsumerGroupHeartbeat with partitions": 2031,
    "ConsumerGroupHeartbeat after a rebalance": 3017,
    "ConsumerGroupHeartbeat with partitions after a rebalance": 3697,
    "OffsetCommit": 2815,
    "OffsetCommit of 1,000 partitions": 284788,
    "Metadata of one topic": 1113,
    "ApiVersions": 3008,
    "FindCoordinator": 1639,
    "Call of another node": 1028,
}
FOLLOWER: Final = 2


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SLOW_WRITE_SECONDS", float("inf"))


def check(name: str, tracer: Tracer) -> None:
    """Compare a count with its figure; see the module's docstring for other versions."""
    count, figure = tracer.count, FIGURES[name]
    most = "\n".join(f"{count:6} {name}" for name, count in tracer.functions.most_common(20))
    assert count <= figure * (1 + TOLERANCE), f"{name}: {count}, the figure is {figure}\n{most}"
    if sys.version_info[:2] == (3, 11):
        assert count >= figure * (1 - TOLERANCE), f"{name}: {count}, write the new figure"


@asynccontextmanager
async def serve_topic(
    path: Path, **topic: Any
) -> AsyncIterator[tuple[Broker, Partition, TrioWireClient]]:
    """Serve the topic ``t`` from a real disk, with the tasks of the broker that end waits."""
    subject = broker(disks=[cast("SimDisk", RealDisk(str(path)))])
    partition = await create_topic(subject, **topic)
    async with serve(subject.services) as node, trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.fetch_waits.run)
        yield subject, partition, node
        nursery.cancel_scope.cancel()


async def send_and_wait(
    subject: Broker, node: TrioWireClient, frame: bytes, tracer: Tracer
) -> None:
    """Count what a fetch costs until it waits."""
    with tracer.counting():
        await node.send_bytes(frame)
        await trio.testing.wait_all_tasks_blocked()
    while not len(subject.replicas.fetch_waits):
        with tracer.counting():
            await trio.testing.wait_all_tasks_blocked()


def produce_request(acks: int = 1, count: int = 1, **batch: Any) -> ProduceRequest:
    """Return a request with a batch for each of ``count`` partitions."""
    topic = ProduceRequest.TopicProduceData
    records = one_batch(bytes(100), **batch)
    datas = [topic.PartitionProduceData(index=index, records=records) for index in range(count)]
    topics = [topic(name="t", topic_id=topic_id("t"), partition_data=datas)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics)


def idempotent_request(sequence: int) -> ProduceRequest:
    return produce_request(acks=-1, producer_id=7, producer_epoch=0, base_sequence=sequence)


def transactional_request(sequence: int) -> ProduceRequest:
    request = produce_request(
        acks=-1, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    request.transactional_id = "t"
    return request


@pytest.mark.parametrize(
    ("name", "count", "make"),
    [
        ("Produce, acks=1", 1, lambda _: produce_request()),
        ("Produce, acks=1, ten partitions", 10, lambda _: produce_request(count=10)),
        ("Produce, acks=all, idempotent", 1, idempotent_request),
        ("Produce, acks=all, in a transaction", 1, transactional_request),
    ],
)
async def test_produce(tmp_path: Path, name: str, count: int, make: Make) -> None:
    async with serve_topic(tmp_path, partitions=count) as (subject, partition, node):
        verifier = subject.parts.verifier
        assert isinstance(verifier, ScriptedVerifier)
        verifier.default = NONE
        answer, tracer = await cost(node, make, 13)
        answers = answer.responses[0].partition_responses
        assert [each.error_code for each in answers] == [0] * count
        assert partition.log.end_offset == REQUESTS
    check(name, tracer)


async def test_produce_that_waits_for_a_follower(tmp_path: Path) -> None:
    async with serve_topic(tmp_path, replicas=(NODE, FOLLOWER)) as (subject, partition, node):
        beginning, committed = [], []
        for number in range(REQUESTS):
            request = produce_request(acks=-1)
            frame = frame_of(request, 13)
            begun, acknowledged = Tracer(), Tracer()
            with begun.counting():
                await node.send_bytes(frame)
                await trio.testing.wait_all_tasks_blocked()
            while partition.log.end_offset == number:
                with begun.counting():
                    await trio.testing.wait_all_tasks_blocked()
            with acknowledged.counting():
                subject.replicas.on_follower_fetched(
                    partition, FOLLOWER, offset=number + 1, log_start=0, broker_epoch=-1
                )
                received = await node.read_frame()
                await trio.testing.wait_all_tasks_blocked()
            answer = response_of(request, 13, received)
            (produced,) = answer.responses[0].partition_responses
            assert (produced.error_code, produced.base_offset) == (0, number)
            beginning.append(begun)
            committed.append(acknowledged)
    check("Produce that begins to wait for a follower", median(beginning))
    check("Produce that is committed", median(committed))


@pytest.mark.parametrize(
    ("isolation_level", "name"),
    [(0, "Fetch at the tail"), (1, "Fetch at the tail, read_committed")],
)
async def test_fetch_at_the_tail(tmp_path: Path, isolation_level: int, name: str) -> None:
    async with serve_topic(tmp_path) as (subject, partition, node):
        for _ in range(REQUESTS):
            write(subject, partition, bytes(100))
        place, isolation = at("t", REQUESTS - 1), {"isolation_level": isolation_level}
        request = fetch_request(place, session_epoch=-1, max_wait_ms=500, **isolation)
        answer, tracer = await cost(node, lambda _: request, 17)
        assert len(answer.responses[0].partitions[0].records) > 100
    check(name, tracer)


def places_of(offsets: dict[int, int]) -> Topic:
    """Return the part of a request that reads partitions from these offsets."""
    topic, *others = [at("t", offset, partition=index) for index, offset in offsets.items()]
    topic.partitions += [place for other in others for place in other.partitions]
    return topic


async def test_fetch_of_several_partitions(tmp_path: Path) -> None:
    async with serve_topic(tmp_path, partitions=8) as (subject, partition, node):
        other = subject.replicas.partitions.get("t", 1)
        for _ in range(REQUESTS):
            write(subject, partition, bytes(100))
            write(subject, other, bytes(100))
        topic = places_of({index: REQUESTS - 1 if index < 2 else 0 for index in range(8)})
        request = fetch_request(topic, session_epoch=-1, max_wait_ms=500)
        answer, tracer = await cost(node, lambda _: request, 17)
        sizes = [len(place.records) for place in answer.responses[0].partitions]
        assert all(sizes[:2])
        assert not any(sizes[2:])
    check("Fetch of 8 partitions, two with records", tracer)


async def test_fetch_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a request that takes one record and one that has nothing new to name."""
    # On a busy machine, every request would also visit a few settled partitions.
    monkeypatch.setattr(fetch_sessions, "_SCAN_INTERVAL_S", math.inf)
    async with serve_topic(tmp_path, partitions=20) as (subject, partition, node):
        opening = fetch_request(places_of(dict.fromkeys(range(20), 0)), session_epoch=0)
        session_id = (await ask(node, opening, 17))[0].session_id
        epochs = itertools.count(1)

        async def fetch(*topics: Topic) -> tuple[Any, Tracer]:
            epoch = next(epochs)
            request = fetch_request(*topics, session_id=session_id, session_epoch=epoch)
            return await ask(node, request, 17)

        naming: list[Tracer] = []
        unnamed: list[Tracer] = []
        for _ in range(REQUESTS):
            answer, _ = await fetch(at("t", partition.log.end_offset))
            assert not answer.responses
            for counts in (unnamed, naming):
                write(subject, partition, bytes(100))
                end = partition.log.end_offset
                answer, tracer = await fetch(*([at("t", end - 1)] if counts is naming else []))
                (place,) = answer.responses[0].partitions
                assert len(place.records) > 100
                counts.append(tracer)
    check("Fetch in a session, one partition with records", median(naming))
    check("Fetch in a session that names nothing", median(unnamed))


@pytest.mark.parametrize(("count", "name"), [(1, "Fetch"), (20, "Fetch of 20 partitions")])
async def test_fetch_that_waits(tmp_path: Path, count: int, name: str) -> None:
    async with serve_topic(tmp_path, partitions=count) as (subject, partition, node):
        others = [at("t", partition=index) for index in range(1, count)]
        beginning, woken = [], []
        for number in range(REQUESTS):
            write(subject, partition, bytes(100))
            end = partition.log.end_offset
            request = fetch_request(at("t", end), *others, session_epoch=-1, max_wait_ms=60_000)
            frame = frame_of(request, 17)
            begun, append, appended = Tracer(), Tracer(), Tracer()
            await send_and_wait(subject, node, frame, begun)
            with appended.counting():
                write(subject, partition, bytes(100))
                received = await node.read_frame()
                await trio.testing.wait_all_tasks_blocked()
            with append.counting():
                write(subject, partition, bytes(100))
            appended.functions.subtract(append.functions)
            answer = response_of(request, 17, received)
            assert len(answer.responses[0].partitions[0].records) > 100, number
            beginning.append(begun)
            woken.append(appended)
    check(f"{name} that begins to wait", median(beginning))
    check(f"{name} that is woken", median(woken))


async def test_fetches_that_are_woken_together(tmp_path: Path) -> None:
    """Count what each of 20 equal fetches costs from the append to its answer."""
    async with serve_topic(tmp_path) as (subject, partition, node), AsyncExitStack() as stack:
        address = node.stream.socket.getpeername()
        clients = [await TrioWireClient.connect(*address) for _ in range(20)]
        for client in clients:
            await stack.enter_async_context(client)
        woken = []
        for number in range(REQUESTS):
            request = fetch_request(at("t", number), session_epoch=-1, max_wait_ms=60_000)
            for client in clients:
                await client.send_bytes(frame_of(request, 17))
            while len(subject.replicas.fetch_waits) < len(clients):
                await trio.testing.wait_all_tasks_blocked()
            appended = Tracer()
            with appended.counting():
                write(subject, partition, bytes(100))
                received = [await client.read_frame() for client in clients]
                await trio.testing.wait_all_tasks_blocked()
            for frame in received:
                answer = response_of(request, 17, frame)
                assert len(answer.responses[0].partitions[0].records) > 100, number
            appended.share(len(clients))
            woken.append(appended)
    check("Fetch that is woken with 19 others", median(woken))


@attrs.define
class Follower:
    """A follower's session, in which a request names the partition if its position has changed."""

    node: TrioWireClient
    session_id: int = 0
    epoch: int = 0
    end: int = 0
    high_watermark: int = 0
    is_named: bool = False

    def frame(self, *, wait_ms: int = 60_000) -> bytes:
        topics = [] if self.is_named else [at("t", self.end, high_watermark=self.high_watermark)]
        self.is_named = True
        request = fetch_request(
            *topics,
            replica_state=FetchRequest.ReplicaState(replica_id=FOLLOWER, replica_epoch=-1),
            max_wait_ms=wait_ms,
            session_id=self.session_id,
            session_epoch=self.epoch,
        )
        return frame_of(request, 18)

    async def receive(self, tracer: Tracer) -> None:
        with tracer.counting():
            received = await self.node.read_frame()
            await trio.testing.wait_all_tasks_blocked()
        answer = response_of(fetch_request(), 18, received)
        self.session_id = answer.session_id
        self.epoch += 1
        for topic in answer.responses:
            for answered in topic.partitions:
                self.end += bool(answered.records)
                self.high_watermark = answered.high_watermark
                self.is_named = False


async def test_copy_to_a_follower(tmp_path: Path) -> None:
    """Count from the append until the follower waits again and knows the high watermark."""
    async with serve_topic(tmp_path, replicas=(NODE, FOLLOWER)) as (subject, partition, node):
        follower = Follower(node)
        await node.send_bytes(follower.frame(wait_ms=0))
        await follower.receive(Tracer())
        await send_and_wait(subject, node, follower.frame(), Tracer())
        copies = []
        for number in range(REQUESTS):
            copy = Tracer()
            with copy.counting():
                write(subject, partition, bytes(100))
            await follower.receive(copy)
            while follower.high_watermark <= number:
                frame = follower.frame()
                with copy.counting():
                    await node.send_bytes(frame)
                await follower.receive(copy)
            await send_and_wait(subject, node, follower.frame(), copy)
            copies.append(copy)
        assert follower.end == follower.high_watermark == REQUESTS
    check("Copy of a record to a follower", median(copies))


async def member_of(group: GroupNode) -> dict[str, Any]:
    """Return the identity of the only member of a stable group."""
    member = (await group.join(version=3)).member_id
    identity: dict[str, Any] = {"group_id": "g", "member_id": member}
    await group.ask(SyncGroupRequest(generation_id=1, assignments=[], **identity), 3)
    return identity


async def test_heartbeat_and_offset_commit() -> None:
    async with group_node() as group, serve(group.broker.services) as node:
        identity = await member_of(group)
        heartbeat = HeartbeatRequest(generation_id=1, **identity)
        answer, tracer = await cost(node, lambda _: heartbeat, 4)
        assert answer.error_code == 0
        check("Heartbeat", tracer)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        place = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=10, committed_metadata=""
        )
        commit = OffsetCommitRequest(
            generation_id_or_member_epoch=1,
            topics=[topic(name="t", partitions=[place])],
            **identity,
        )
        answer, tracer = await cost(node, lambda _: commit, 9)
        assert answer.topics[0].partitions[0].error_code == 0
        check("OffsetCommit", tracer)
        await group.broker.create("wide", partitions=1_000)
        wide = [
            topic.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=10, committed_metadata=""
            )
            for index in range(1_000)
        ]
        commit.topics = [topic(name="wide", partitions=wide)]
        counts = [(await ask(node, commit, 9))[1] for _ in range(3)]
        check("OffsetCommit of 1,000 partitions", median(counts))


async def test_heartbeat_of_a_consumer_group() -> None:
    async with group_node() as group:
        level = r.FeatureLevelRecord(name="group.version", feature_level=1)
        await group.broker.publish(level)
        async with serve(group.broker.services) as node:
            identity: dict[str, Any] = {"group_id": "g", "member_id": "m"}
            join = ConsumerGroupHeartbeatRequest(
                member_epoch=0,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
                **identity,
            )
            joined, _ = await ask(node, join, 1)
            heartbeat = ConsumerGroupHeartbeatRequest(member_epoch=joined.member_epoch, **identity)
            answer, tracer = await cost(node, lambda _: heartbeat, 1)
            assert (answer.error_code, answer.member_epoch) == (0, joined.member_epoch)
            check("ConsumerGroupHeartbeat", tracer)
            shape = ConsumerGroupHeartbeatRequest.TopicPartitions
            heartbeat.topic_partitions = [
                shape(topic_id=each.topic_id, partitions=each.partitions)
                for each in joined.assignment.topic_partitions
            ]
            answer, tracer = await cost(node, lambda _: heartbeat, 1)
            assert (answer.error_code, answer.member_epoch) == (0, joined.member_epoch)
            check("ConsumerGroupHeartbeat with partitions", tracer)


@pytest.mark.parametrize("names_partitions", [False, True])
async def test_heartbeat_that_learns_of_a_rebalance(names_partitions: bool) -> None:
    """Count what a member costs that reaches a new epoch and keeps its partitions."""
    shape = ConsumerGroupHeartbeatRequest.TopicPartitions
    async with group_node({"group.consumer.assignment.interval.ms": "0"}) as group:
        level = r.FeatureLevelRecord(name="group.version", feature_level=1)
        await group.broker.publish(level)
        async with serve(group.broker.services) as node:
            owned = {"m": [0], "n": [1, 2]}
            epochs = dict.fromkeys(owned, 0)

            async def beat(member: str, **fields: Any) -> Tracer:
                request = ConsumerGroupHeartbeatRequest(
                    group_id="g", member_id=member, member_epoch=epochs[member], **fields
                )
                answer, tracer = await ask(node, request, 1)
                assert answer.error_code == 0
                epochs[member] = answer.member_epoch
                return tracer

            topics: dict[str, Any] = {"subscribed_topic_names": ["t"], "topic_partitions": []}
            for member in owned:
                await beat(member, rebalance_timeout_ms=1000, **topics)
            for member in ("m", "n", "m"):  # The first member gives up partitions.
                await beat(member, topic_partitions=[])
            counts = []
            for number in range(REQUESTS):
                await beat("n", subscribed_topic_names=["t", f"none-{number}"])
                topic = shape(topic_id=topic_id("t"), partitions=owned["m"])
                fields = {"topic_partitions": [topic]} if names_partitions else {}
                before = epochs["m"]
                counts.append(await beat("m", **fields))
                assert before < epochs["m"] == epochs["n"]
    form = " with partitions" if names_partitions else ""
    check(f"ConsumerGroupHeartbeat{form} after a rebalance", median(counts))


VERSIONS: Final = ApiVersionsResponse(
    api_keys=[ApiVersionsResponse.ApiVersion(api_key=12, min_version=0, max_version=4)]
)


async def answer_heartbeats(stream: trio.SocketStream) -> None:
    """Serve another node's connection, with code that is not counted."""
    answers = {
        18: b"".join(response_parts(18, 3, 0, VERSIONS)),
        12: b"".join(response_parts(12, 4, 0, HeartbeatResponse())),
    }
    received = bytearray()
    while True:
        received += await stream.receive_some()
        size, key, _, correlation_id = struct.unpack_from(">ihhi", received)
        assert len(received) == 4 + size, "each request is awaited"
        received.clear()
        answer = answers[key]
        await stream.send_all(answer[:4] + struct.pack(">i", correlation_id) + answer[8:])


async def test_call_of_another_node() -> None:
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    async with trio.open_nursery() as nursery:
        serve_other = partial(trio.serve_tcp, answer_heartbeats, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve_other)
        port = listener.socket.getsockname()[1]
        network = Network(SystemClock(), Random(0))
        await nursery.start(network.run)
        pool, counts = network.pool("node-1", 30.0), []
        for _ in range(REQUESTS):
            tracer = Tracer()
            with tracer.counting():
                answer = await pool.call("127.0.0.1", port, heartbeat)
                await trio.testing.wait_all_tasks_blocked()
            assert answer.error_code == 0
            counts.append(tracer)
        nursery.cancel_scope.cancel()
    check("Call of another node", median(counts))


@attrs.define
class Quorum:
    """The part of the quorum that ApiVersions reports."""

    kraft_version: int = 1


async def test_requests_about_the_cluster() -> None:
    async with group_node() as group:
        group.broker.replace(quorum=Quorum())
        async with serve(group.broker.services) as node:
            await cluster_requests(node)


async def cluster_requests(node: TrioWireClient) -> None:
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    metadata = MetadataRequest(topics=[topic])
    answer, tracer = await cost(node, lambda _: metadata, 12)
    assert len(answer.topics[0].partitions) == 3
    check("Metadata of one topic", tracer)
    versions = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    answer, tracer = await cost(node, lambda _: versions, 4)
    assert answer.error_code == 0
    check("ApiVersions", tracer)
    coordinator = FindCoordinatorRequest(coordinator_keys=["g"])
    answer, tracer = await cost(node, lambda _: coordinator, 6)
    assert answer.coordinators[0].error_code == 0
    check("FindCoordinator", tracer)
