"""The cost of usual requests, in bytecodes: what kwire executes from a frame to its answer.

Unlike a time, the count is the same in every run, on every machine, however busy it is. A client
sends over a real socket, and its own code, trio and the standard library are not counted. The
figures are those of CPython 3.11, which runs more bytecodes for the same source than later
versions: with these the figure is only an upper bound. After a change of a figure on purpose, write
the new one.
"""

import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

import attrs
import pytest

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.codec.schema import spec_of
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Services
from kwire.log import disk
from kwire.log.disk import RealDisk
from kwire.testing.wire import TrioWireClient
from simulation.disk import SimDisk
from tests.support.handlers.broker import Wall, broker, create_topic, one_batch
from tests.support.handlers.group_node import group_node
from tests.support.net.node import running

KWIRE: Final = str(Path(disk.__file__).parents[1])
COUNTED: Final = (KWIRE, "<kwire ", "<attrs generated methods kwire.", "<string>")
"""The files of kwire, its generated code, and the constructors of its named tuples."""
NOT_SERVING: Final = tuple(
    f"{KWIRE}/{name}" for name in ("testing/", "simulation/", "_fallbacks.py")
)
"""The client, the disk in memory, and the walk over records, which usually runs in C."""
REQUESTS: Final = 21
TOLERANCE: Final = 0.02
PRODUCE: Final = 2995
FETCH: Final = 3698
HEARTBEAT: Final = 2090
OFFSET_COMMIT: Final = 5468
METADATA: Final = 3085


class Stopped(Wall):
    """A clock by which no answer takes long, so that none of them is made in slices."""

    def now(self) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SLOW_WRITE_SECONDS", float("inf"))


class Counter:
    """Counts the bytecodes of kwire's code, and of the code that it makes, while it is traced."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(COUNTED) or name.startswith(NOT_SERVING):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_event

    def _on_event(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        self.count += event == "opcode"
        return self._on_event


class Subject:
    """A connection to a node."""

    def __init__(self, client: TrioWireClient) -> None:
        self.client = client

    async def ask(self, request: Any, version: int) -> tuple[Any, int]:
        """Return the response and the bytecodes that the node has executed for it."""
        key = spec_of(type(request)).api_key
        assert key is not None
        frame = request_frame(key, version, 1, "client", request)
        counter, before = Counter(), sys.gettrace()
        sys.settrace(counter.trace)
        try:
            await self.client.send_bytes(frame)
            answer = await self.client.read_frame()
        finally:
            sys.settrace(before)
        return read_response(key, version, memoryview(answer))[1], counter.count

    async def cost(self, request: Any, version: int) -> tuple[Any, int]:
        """Return the last response to a repeated request, and the usual count."""
        answers = [await self.ask(request, version) for _ in range(REQUESTS)]
        return answers[-1][0], int(statistics.median(count for _, count in answers))


@asynccontextmanager
async def serve(services: Services) -> AsyncIterator[Subject]:
    """Serve requests over a loopback socket."""
    dispatcher = Dispatcher(attrs.evolve(services, clock=Stopped()), ListenerType.BROKER)
    async with running() as node:
        service = node.service
        node.port = service.bind("PLAINTEXT", "127.0.0.1", 0).port
        service.accept("PLAINTEXT", dispatcher.for_connection)
        async with await node.connect() as client:
            yield Subject(client)


def check(count: int, figure: int) -> None:
    """Compare a count with its figure; see the module's docstring for other versions."""
    assert count <= figure * (1 + TOLERANCE), f"{count} bytecodes, the figure is {figure}"
    if sys.version_info[:2] == (3, 11):
        assert count >= figure * (1 - TOLERANCE), f"{count} bytecodes: write the new figure"


def produce_request() -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=one_batch(bytes(100)))
    topics = [topic(name="t", partition_data=[partition])]
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)


async def test_produce_and_fetch_of_one_record(tmp_path: Path) -> None:
    subject = broker(disks=[cast("SimDisk", RealDisk(str(tmp_path)))])
    partition = await create_topic(subject)
    async with serve(subject.services) as node:
        answer, count = await node.cost(produce_request(), 11)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert partition.log.end_offset == REQUESTS
        check(count, PRODUCE)
        topic = FetchRequest.FetchTopic
        place = topic.FetchPartition(
            partition=0, fetch_offset=REQUESTS - 1, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[topic(topic="t", partitions=[place])],
        )
        answer, count = await node.cost(request, 12)
        assert len(answer.responses[0].partitions[0].records) > 100
        check(count, FETCH)


async def test_heartbeat_offset_commit_and_metadata() -> None:
    async with group_node() as group, serve(group.broker.services) as node:
        member = (await group.join(version=3)).member_id
        identity: dict[str, Any] = {"group_id": "g", "member_id": member}
        await group.ask(SyncGroupRequest(generation_id=1, assignments=[], **identity), 3)
        answer, count = await node.cost(HeartbeatRequest(generation_id=1, **identity), 4)
        assert answer.error_code == 0
        check(count, HEARTBEAT)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        place = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=10, committed_metadata=""
        )
        commit = OffsetCommitRequest(
            generation_id_or_member_epoch=1,
            topics=[topic(name="t", partitions=[place])],
            **identity,
        )
        answer, count = await node.cost(commit, 8)
        assert answer.topics[0].partitions[0].error_code == 0
        check(count, OFFSET_COMMIT)
        topic_t = MetadataRequest.MetadataRequestTopic(name="t")
        answer, count = await node.cost(MetadataRequest(topics=[topic_t]), 12)
        assert len(answer.topics[0].partitions) == 3
        check(count, METADATA)
