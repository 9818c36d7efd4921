"""A node takes its time and its randomness from the clock and the source that it is given."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import trio
import trio.testing

from kwire.clock import SystemClock
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.node.environment import this_computer
from kwire.node.server import Server, make_node
from kwire.records.build import New, batch
from kwire.testing.clock import MockTime
from kwire.testing.wire import TrioWireClient
from kwire.types import uuid_text
from tests.support.server.nodes import config, create

EARLIEST = -2
UNKNOWN_MEMBER_ID = 25
MEMBER_ID_REQUIRED = 79
DAY_S = 86_400
START_MS = 1_700_000_000_000
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": str(7 * DAY_S * 1000),
}


class Ids(NamedTuple):
    cluster: str
    directory: bytes
    topics: list[bytes]
    member: str


def node(directory: Path, **arguments: object) -> Server:
    changes = {key.replace(".", "_"): value for key, value in SETTINGS.items()}
    environment = this_computer(**arguments)  # type: ignore[arg-type]
    return make_node(config(directory, **changes), environment)


def test_system_clock_is_that_of_trio_wherever_it_is_created() -> None:
    early = SystemClock()

    async def main() -> None:
        within = SystemClock()
        clock.jump(5)
        assert early.now() == within.now() == trio.current_time() == 5

    clock = trio.testing.MockClock()
    trio.run(main, clock=clock)


async def join(client: TrioWireClient, version: int) -> JoinGroupResponse:
    """Join group g once its coordinator is loaded."""
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    await client.call(find, 4)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    while True:
        response: JoinGroupResponse = await client.call(request, version)
        if response.error_code in (0, MEMBER_ID_REQUIRED):
            return response
        await trio.sleep(0.01)


async def ids(directory: Path, seed: int) -> Ids:
    server = node(directory, random=Random(seed))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        assert [await create(server, topic) for topic in ("a", "b")] == [0, 0]
        async with await TrioWireClient.connect(*server.address) as client:
            response = await join(client, 9)
        assert response.error_code == MEMBER_ID_REQUIRED
        image = server.core.publisher.image
        topics = [topic.id for name in ("a", "b") if (topic := image.topic(name)) is not None]
        server.stop()
    directories = list(server.core.identity.directories.values())
    cluster = server.core.identity.cluster_id
    return Ids(cluster, directories[0], topics, response.member_id)


async def test_nodes_with_one_seed_make_the_same_ids(tmp_path: Path) -> None:
    first = await ids(tmp_path / "1", 7)
    assert await ids(tmp_path / "2", 7) == first
    other = await ids(tmp_path / "3", 8)
    assert not {uuid_text(topic) for topic in first.topics} & {uuid_text(t) for t in other.topics}
    assert first.cluster != other.cluster
    assert first.member != other.member


async def until(ask: Callable[[], Awaitable[int]], answer: int) -> None:
    """Repeat a request until it returns this answer."""
    for _ in range(1_000):
        if (value := await ask()) == answer:
            return
        await trio.sleep(0.01)
    raise AssertionError(value)


Test = Callable[[Server, TrioWireClient], Awaitable[None]]


def run(test: Test, path: Path, to: MockTime) -> None:
    """Run a test with a node and a client on a clock that the test moves."""

    async def main() -> None:
        server = node(path, clock=to)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            async with await TrioWireClient.connect(*server.address) as client:
                await test(server, client)
            server.stop()

    trio.run(main, clock=to.of_trio)


def test_retention_deletes_records_when_the_clock_is_moved(tmp_path: Path) -> None:
    time = MockTime(START_MS)

    async def earliest(server: Server) -> int:
        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[topic(name="t", partitions=[partition])]
        )
        async with await TrioWireClient.connect(*server.address) as client:
            response = await client.call(request, 7)
        offset: int = response.topics[0].partitions[0].offset
        return offset

    async def test(server: Server, client: TrioWireClient) -> None:
        assert await create(server, "t") == 0
        topic = ProduceRequest.TopicProduceData
        records = batch([New(None, b"x")] * 3, timestamp_ms=time.now_ms())
        data = topic(
            name="t", partition_data=[topic.PartitionProduceData(index=0, records=records)]
        )
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
        assert not (await client.call(request, 9)).responses[0].partition_responses[0].error_code
        time.move(6 * DAY_S)
        await trio.sleep(0.2)
        assert await earliest(server) == 0
        time.move(2 * DAY_S)
        await until(partial(earliest, server), 3)
        assert await create(server, "u") == 0  # the broker's own session has outlived the move

    run(test, tmp_path, time)


def test_group_session_expires_when_the_clock_is_moved(tmp_path: Path) -> None:
    time = MockTime(START_MS)

    async def test(server: Server, client: TrioWireClient) -> None:
        joined = await join(client, 3)
        heartbeat = HeartbeatRequest(
            group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
        )

        async def error() -> int:
            code: int = (await client.call(heartbeat, 4)).error_code
            return code

        time.move(20)
        assert await error() != UNKNOWN_MEMBER_ID
        time.move(31)
        await until(error, UNKNOWN_MEMBER_ID)

    run(test, tmp_path, time)
