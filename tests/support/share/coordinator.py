"""Share coordinators over logs in memory, and a cluster of them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.lowlevel

from kwire.codec.compile import decode, encode
from kwire.codec.messages.share_state_records import ShareSnapshotValue, ShareUpdateValue
from kwire.drive import run_steps
from kwire.errors import KafkaError, NetworkException
from kwire.records.header import parse
from kwire.records.iterate import records
from kwire.share.keys import SharePartition
from kwire.share.persister import InitialState, ReadState, StateBatch
from kwire.share.state import messages
from kwire.share.state.coordinator import ShareCoordinator
from kwire.share.state.messages import Results
from kwire.share.state.model import StateWrite
from kwire.share.state.records import load
from kwire.share.state.settings import ShareStateSettings
from kwire.types import TopicPartition
from tests.support.clock import Clock, JumpingClock
from tests.support.coordinator.node import FakeLog

TOPIC = bytes(range(16))
OTHER_TOPIC = bytes(16)
OF = SharePartition("g", TOPIC, 0)


@attrs.define
class Topics:
    """The topics of the metadata: all but the deleted ones exist, with a hundred partitions."""

    deleted: set[bytes] = attrs.field(factory=set)

    def has_partition(self, topic_id: bytes, partition: int) -> bool:
        return topic_id not in self.deleted and partition < 100

    def is_deleted(self, topic_id: bytes) -> bool:
        return topic_id in self.deleted


@attrs.define(eq=False)
class ShareNode:
    """A share coordinator and the log that it writes."""

    log: FakeLog
    coordinator: ShareCoordinator
    topics: Topics
    deletions: list[tuple[int, int]]
    """The partition and offset of each deletion of records."""

    def elect(self, leader_epoch: int = 0) -> None:
        """Lead all partitions of the topic."""
        for index in range(self.coordinator.partitions()):
            self.coordinator.service.on_elected(index, leader_epoch)

    def resign(self) -> None:
        for index in range(self.coordinator.partitions()):
            self.coordinator.service.on_resigned(index)

    # Requests about one share partition; they raise its error

    async def initialize(self, start_offset: int = 0, epoch: int = 1, of: Any = OF) -> None:
        await self._one(self.coordinator.initialize, of, InitialState(epoch, start_offset))

    async def read(self, leader_epoch: int = -1, of: Any = OF) -> ReadState:
        state: ReadState = await self._one(self.coordinator.read, of, leader_epoch)
        return state

    async def write(self, *batches: StateBatch, of: Any = OF, **fields: int) -> None:
        values = {
            "state_epoch": 1,
            "leader_epoch": 0,
            "start_offset": -1,
            "delivery_complete_count": 0,
        }
        write = StateWrite(**values | fields, batches=list(batches))
        await self._one(self.coordinator.write, of, write)

    async def delete(self, of: Any = OF) -> None:
        await self._one(self.coordinator.delete, of, None)

    async def _one(self, ask: Any, of: SharePartition, request: object) -> Any:
        results: Results[object] = await ask(iter([(of, request)]))
        result = results[of]
        if isinstance(result, KafkaError):
            raise result
        return result

    def values(self) -> list[ShareSnapshotValue | ShareUpdateValue | None]:
        """Return the values of all records in the partition of `OF`."""
        index = self.coordinator.partition_of(OF)
        values = []
        for batch in self.log.data.get(index, []):
            for record in records(batch, 0, parse(batch, 0)):
                loaded = load(record.key or b"", record.value)
                assert loaded is not None
                values.append(loaded.value)
        return values


def share_node(
    log: FakeLog | None = None,
    topics: Topics | None = None,
    clock: Clock | JumpingClock | None = None,
    **settings: int,
) -> ShareNode:
    """Return a node that leads no partition yet; with the log of another one as its successor."""
    log, topics, deletions = log or FakeLog(), topics or Topics(), []
    current = ShareStateSettings(**settings)

    async def delete_before(partition: TopicPartition, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        deletions.append((partition.partition, offset))

    coordinator = ShareCoordinator(
        log=log,
        clock=clock or Clock(),
        delete_before=delete_before,
        topics=topics,
        settings=lambda: current,
        partitions=lambda: 3,
    )
    return ShareNode(log, coordinator, topics, deletions)


@asynccontextmanager
async def running(node: ShareNode) -> AsyncIterator[ShareNode]:
    """Run a coordinator until it has loaded the partitions that it leads, and meanwhile."""
    async with trio.open_nursery() as nursery:
        await nursery.start(node.coordinator.run)
        while node.coordinator.service.loading:
            await trio.lowlevel.checkpoint()
        yield node
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class FakeCluster:
    """Share coordinators by broker id; requests to others go through the codec."""

    nodes: dict[int, ShareNode]
    leader: int | None
    """The broker that coordinates all share partitions."""
    node: int = 1
    has_topic: bool = True
    requests: list[tuple[int, Any]] = attrs.field(factory=list)
    """The requests to other brokers."""
    failures: list[KafkaError] = attrs.field(factory=list)
    """The errors of the next requests to other brokers."""
    delay_s: float = 0.0
    on_topic_created: Callable[[], None] = lambda: None
    creations: int = 0

    def coordinator(self) -> ShareCoordinator:
        return self.nodes[self.node].coordinator

    def coordinator_of(self, of: SharePartition) -> int | None:
        return self.leader

    async def create_topic(self) -> None:
        await trio.lowlevel.checkpoint()
        self.creations += 1
        self.on_topic_created()

    async def call(self, broker: int, request: Any) -> Any:
        self.requests.append((broker, request))
        await trio.sleep(self.delay_s)
        if self.failures:
            raise self.failures.pop(0)
        if broker not in self.nodes:
            raise NetworkException
        return await answer(self.nodes[broker].coordinator, request)


async def answer(coordinator: ShareCoordinator, request: Any) -> Any:
    """Return a coordinator's answer to a request of the newest version, through the codec."""
    name = type(request).__name__
    operations: dict[str, tuple[Any, Any, Any]] = {
        "InitializeShareGroupStateRequest": (
            messages.initial_states,
            coordinator.initialize,
            messages.initialize_response,
        ),
        "ReadShareGroupStateRequest": (
            messages.leader_epochs,
            coordinator.read,
            messages.read_response,
        ),
        "WriteShareGroupStateRequest": (
            messages.writes,
            coordinator.write,
            messages.write_response,
        ),
        "DeleteShareGroupStateRequest": (
            messages.share_partitions,
            coordinator.delete,
            messages.delete_response,
        ),
        "ReadShareGroupStateSummaryRequest": (
            messages.share_partitions,
            coordinator.summaries,
            messages.summary_response,
        ),
    }
    read, ask, respond = operations[name]
    version = 1 if name.startswith("Write") or name.endswith("SummaryRequest") else 0
    received = decode(type(request), encode(request, version), version)
    response = run_steps(respond(await ask(read(received))))
    return decode(type(response), encode(response, version), version)
