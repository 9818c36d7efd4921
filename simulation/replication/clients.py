"""Clients of the simulated cluster: shared parts, producers, and clients that delete records.

Rules: a client knows the cluster only from responses, and from metadata that it reads from a random
broker. Every request has a time limit; a request without a response may have been executed.
"""

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

import attrs
import trio

from kwire import errors
from kwire.codec.frame import Body
from kwire.codec.messages.delete_records import DeleteRecordsRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.coordinator.partitioning import partition_for
from kwire.net.connection_pool import OutOfReach
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.records.build import New, batch
from kwire.types import CONSUMER_OFFSETS
from simulation.replication.checks import TOPIC
from simulation.replication.history import History, demand
from simulation.replication.links import FramePool, host_of
from simulation.replication.metadata_checks import Books
from simulation.replication.node import SimMachine
from simulation.replication.settings import GROUP_PARTITIONS
from simulation.replication.wire import Wire

ANSWER_S: Final = 8.0
BEFORE_TOPIC_IDS: Final = 12
"""The last version of Fetch and Produce that names topics."""
BATCH_RECORDS: Final = (1, 1, 1, 1, 2, 3)
"""The numbers of records in a batch, from which a producer draws one."""
VALUE_BYTES: Final = 16
"""The size of every value: records written after a truncation often have the old records' size."""
TIME_MS: Final = 1_699_980_000_000
"""The timestamp of records, which is hours in the past even when wall clocks are set back."""
_ATTEMPTS: Final = 12
"""The number of times that an idempotent producer sends one batch."""
_UNKNOWN: Final = -99
"""The code for a missing response, in place of an error code."""
RETRIABLE: Final = frozenset(
    error.code
    for error in (
        errors.NotLeaderOrFollower,
        errors.UnknownTopicOrPartition,
        errors.NotEnoughReplicas,
        errors.NotEnoughReplicasAfterAppend,
        errors.RequestTimedOut,
        errors.KafkaStorageError,
        errors.CoordinatorLoadInProgress,
        errors.CoordinatorNotAvailable,
        errors.NotCoordinator,
        errors.ConcurrentTransactions,
        errors.LeaderNotAvailable,
        errors.OffsetNotAvailable,
        errors.FencedLeaderEpoch,
        errors.UnknownLeaderEpoch,
        errors.NetworkException,
        errors.UnstableOffsetCommit,
        errors.UnknownTopicId,
    )
) | {_UNKNOWN}
"""The error codes after which a client retries the request."""


@attrs.define(eq=False)
class World:
    """The cluster as seen by clients."""

    wire: Wire
    machines: dict[int, SimMachine]
    books: Books
    history: History
    partition_count: int
    note: Callable[..., None]
    rivals: set[str] = attrs.field(factory=set)
    """The transactional ids that a second client has also used."""
    is_quiet: bool = False
    """True while producers must not start anything new."""

    def image(self, random: Random) -> MetadataImage | None:
        """Return the metadata of a random broker."""
        brokers = [m for m in self.machines.values() if m.config.is_broker and m.is_serving]
        return random.choice(brokers).image if brokers else None


class Answered(NamedTuple):
    """A response to a group's request; None without one."""

    response: Body
    is_current: bool
    """True if the broker led the group's partition from the request until the response."""


@attrs.define(eq=False)
class SimClient:
    """One client with its connections."""

    id: int
    """The client's number in the network, which is negative."""
    world: World
    random: Random
    pool: FramePool = attrs.field(init=False)
    _epochs: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.pool = FramePool(self.world.wire, self.id, ANSWER_S)

    def leader_of(self, topic: str, index: int) -> int | None:
        """Return the leader of a partition, or sometimes a former leader."""
        if self.random.random() < 0.2:
            former = [
                machine.id
                for machine in self.world.machines.values()
                if (partition := machine.partition(topic, index)) and partition.leader is not None
            ]
            if former:
                return self.random.choice(former)
        image = self.world.image(self.random)
        state = None if image is None else image.partition(topic, index)
        return None if state is None or state.leader < 0 else state.leader

    def epoch_of(self, topic: str, index: int) -> int:
        """Return the largest leader epoch that this client has seen in metadata."""
        image = self.world.image(self.random)
        state = None if image is None else image.partition(topic, index)
        epoch = -1 if state is None else state.leader_epoch
        self._epochs[topic, index] = max(epoch, self._epochs.get((topic, index), -1))
        return self._epochs[topic, index]

    async def call(self, node: int | None, request: Body, *, version: int | None = None) -> Body:
        """Return a broker's response, or None without a response."""
        if node is None:
            await trio.sleep(0.1)
            return None
        try:
            return await self.pool.call(host_of(node), 9092, request, version=version)
        except OutOfReach:
            return None

    async def call_coordinator(
        self, group: str, request: Body, *, version: int | None = None
    ) -> Answered:
        """Return the response of the broker that the client takes for a group's coordinator.

        A broker that was suspended or cut off while another one was elected answers from its own
        state until it hears of that or its lease ends, as in Kafka. Clients cannot tell, because no
        group request has the leader's epoch: Java's and librdkafka's take the epoch and the
        assignment of such an answer as they are. But it promises nothing for the group: the next
        coordinator has begun every member's session when it was elected.
        """
        partition = CONSUMER_OFFSETS, partition_for(group, GROUP_PARTITIONS)
        node, before = self.leader_of(*partition), self.world.books.image.partition(*partition)
        response = await self.call(node, request, version=version)
        after = self.world.books.image.partition(*partition)
        is_current = (
            before is not None
            and after is not None
            and (before.leader, before.leader_epoch) == (after.leader, after.leader_epoch)
            and before.leader == node
        )
        return Answered(response, is_current)

    def demand_unfenced(self) -> None:
        """Check that the last response came from an unfenced broker (invariant 34)."""
        demand(not self.pool.was_fenced, f"client {-self.id}: a fenced broker serves")

    def any_broker(self) -> int:
        machines = [m.id for m in self.world.machines.values() if m.config.is_broker]
        return self.random.choice(machines)

    async def rest(self) -> None:
        """Wait while the world is quiet."""
        while self.world.is_quiet:  # noqa: ASYNC110
            await trio.sleep(0.2)

    async def pause(self) -> None:
        """Wait before a retry."""
        await trio.sleep(0.05 + 0.2 * self.random.random())

    async def new_producer_id(self) -> int:
        """Return a new id for an idempotent producer."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        while True:
            answer = await self.call(self.any_broker(), request)
            if answer is not None and answer.error_code == errors.NONE:
                return int(answer.producer_id)
            await self.pause()

    async def send(
        self, index: int, data: bytes, *, version: int, transactional_id: str | None = None
    ) -> tuple[int, int]:
        """Send a batch once; return the error code and the base offset."""
        topic = ProduceRequest.TopicProduceData
        partition = topic.PartitionProduceData(index=index, records=data)
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[topic(name=TOPIC, partition_data=[partition])],
        )
        answer = await self.call(self.leader_of(TOPIC, index), request, version=version)
        if answer is None:
            return _UNKNOWN, -1
        (result,) = answer.responses[0].partition_responses
        if result.error_code == errors.NONE:
            self.demand_unfenced()
        return result.error_code, result.base_offset


@attrs.define(eq=False)
class Producer(SimClient):
    """A producer with acks=all, idempotent or not."""

    is_idempotent: bool = False
    _count: int = 0
    _producer_id: int = -1
    _sequences: dict[int, int] = attrs.field(factory=dict)

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(0.0, 0.6))
            await self.rest()
            index = self.random.randrange(self.world.partition_count)
            values = []
            for _ in range(self.random.choice(BATCH_RECORDS)):
                self._count += 1
                values.append((b"p%d-%d" % (-self.id, self._count)).ljust(VALUE_BYTES))
            if self.is_idempotent:
                await self._produce_once(index, values)
            else:
                await self._try(index, values, -1, -1)

    async def _produce_once(self, index: int, values: list[bytes]) -> None:
        """Resend a batch until it is acknowledged; get a new producer id if it is rejected."""
        if self._producer_id < 0:
            self._producer_id = await self.new_producer_id()
            self._sequences.clear()
        self.world.history.once.update(values)
        sequence = self._sequences.get(index, 0)
        for _ in range(_ATTEMPTS):
            code = await self._try(index, values, self._producer_id, sequence)
            if code == errors.NONE:
                self._sequences[index] = sequence + len(values)
                return
            if code not in RETRIABLE:
                break
            await self.pause()
        self._producer_id = -1

    async def _try(self, index: int, values: list[bytes], producer_id: int, sequence: int) -> int:
        """Send a batch; return its error code."""
        data = batch(
            [New(None, value) for value in values],
            timestamp_ms=TIME_MS,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
        )
        code, base_offset = await self.send(index, data, version=BEFORE_TOPIC_IDS)
        if code == errors.NONE:
            self.world.history.on_acknowledged(index, base_offset, values)
        return code


@attrs.define(eq=False)
class Deleter(SimClient):
    """A client that deletes a partition's oldest records, often while followers are not in sync."""

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1.0))
            await self._delete(self._choose())

    def _choose(self) -> int:
        """Return a random partition, sometimes among those with the fewest in-sync replicas."""
        indexes = range(self.world.partition_count)
        image = self.world.image(self.random)
        topic = None if image is None else image.topic(TOPIC)
        if topic is None or self.random.random() < 0.5:
            return self.random.choice(indexes)
        fewest = min(len(topic.partitions[index].isr) for index in indexes)
        return self.random.choice([i for i in indexes if len(topic.partitions[i].isr) == fewest])

    async def _delete(self, index: int) -> None:
        history = self.world.history
        last = max(history.acknowledged[index], default=0)
        offset = self.random.randint(min(last, history.deleted_end[index]), last)
        history.delete_end[index] = max(history.delete_end[index], offset)
        topic = DeleteRecordsRequest.DeleteRecordsTopic
        partition = topic.DeleteRecordsPartition(partition_index=index, offset=offset)
        request = DeleteRecordsRequest(
            topics=[topic(name=TOPIC, partitions=[partition])], timeout_ms=5_000
        )
        answer = await self.call(self.leader_of(TOPIC, index), request)
        if answer is None:
            return
        (result,) = answer.topics[0].partitions
        if result.error_code == errors.NONE:
            self.world.note("deleted", index, result.low_watermark)
            history.on_deleted(index, result.low_watermark)
