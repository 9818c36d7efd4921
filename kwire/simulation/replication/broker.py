"""A simulated broker that copies partitions: its logs and replicas are the product's.

What it lacks is replaced by a few lines: a wall clock, the connections to other brokers and to the
controller, each with delays that the seed draws, and a disk in memory that outlives its process.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

import trio

from kwire import attrs
from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.broker_registration import BrokerRegistrationRequest
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.configs.broker import BrokerConfig
from kwire.errors import KafkaError, RequestTimedOut
from kwire.handlers.fetch import fetch
from kwire.handlers.list_offsets import list_offsets
from kwire.handlers.shared.context import Context, Services
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.region import FileRegion
from kwire.log.service import LogManager
from kwire.log.threads import DiskThreads
from kwire.raftmeta.controller.brokers import decide_heartbeat, decide_register_broker
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.partitions import decide_alter_partition
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_records import image_records
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderUnreachable
from kwire.replica.service import ReplicaService
from kwire.simulation.disk import SimDisk
from kwire.simulation.replication.controller import Decide, SimController
from kwire.types import TopicPartition

Q = TypeVar("Q")
R = TypeVar("R")
HEARTBEAT_S: Final = 0.5
ANSWER_S: Final = 3.0
"""The time after which a caller takes a node for unreachable."""
TIME_MS: Final = 1_700_000_000_000


class SimWallClock:
    """trio's clock, and a wall clock that follows it."""

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return TIME_MS + int(trio.current_time() * 1000)


@attrs.define(eq=False)
class SimLinks:
    """The connections between nodes, which can be cut or slow. The controller is node 0."""

    random: Random
    cut: set[tuple[int, int]] = attrs.field(factory=set)
    """Pairs of a sender and a receiver between which nothing passes."""
    slow: set[int] = attrs.field(factory=set)
    """Nodes whose messages take long."""

    async def cross(self, sender: int, receiver: int) -> None:
        """Wait as long as a message takes; for ever if it does not arrive."""
        late = sender in self.slow or receiver in self.slow
        await trio.sleep(self.random.uniform(0.001, 0.5 if late else 0.01))
        if (sender, receiver) in self.cut:
            await trio.sleep_forever()


@attrs.define(eq=False)
class SimLeader:
    """One broker's connection to another."""

    own: "SimReplicaBroker"
    other: "SimReplicaBroker"

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        return await self._call(fetch, request)

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return await self._call(list_offsets, request)

    def drop(self) -> None: ...

    async def _call(self, handler: Callable[[Context, Q], Awaitable[R | None]], request: Q) -> R:
        links, other = self.own.links, self.other
        with trio.move_on_after(ANSWER_S):
            await links.cross(self.own.id, other.id)
            services, life = other.services, other.lives
            if services is None:
                raise LeaderUnreachable(f"broker {other.id} is down")
            try:
                answer = await handler(Context(services=services), request)
            except KafkaError as error:
                raise LeaderUnreachable(f"broker {other.id} refuses: {error!r}") from error
            assert answer is not None
            _read_regions(answer)
            await links.cross(other.id, self.own.id)
            if other.lives != life:
                raise LeaderUnreachable(f"broker {other.id} was restarted")
            return answer
        raise LeaderUnreachable(f"no answer from broker {other.id}")


async def _at_once(call: Callable[[], None]) -> None:
    """Make a thread's call without a thread, for which the simulated clock would not wait."""
    await trio.lowlevel.checkpoint()
    call()


def _read_regions(answer: object) -> None:
    """Read the records of an answer, as sending it does."""
    if isinstance(answer, FetchResponse):
        for topic in answer.responses:
            for partition in topic.partitions:
                if isinstance(partition.records, FileRegion):
                    region = partition.records
                    partition.records = region.read()
                    region.close()


@attrs.define(eq=False)
class SimReplicaBroker:
    """One broker: its disk always, its process while it lives."""

    id: int
    controller: SimController
    links: SimLinks
    random: Random
    config: LogConfig
    lag_max_s: float
    others: Callable[[int], "SimReplicaBroker"]
    disk: SimDisk = attrs.field(factory=SimDisk)
    services: Services | None = None
    logs: LogManager | None = None
    lives: int = 0
    """The number of processes that have ended."""
    started: int = -1
    """The value of ``lives`` when the last process was started."""
    epoch: int = -1
    is_stopping: bool = False
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    clock: SimWallClock = attrs.field(factory=SimWallClock)
    _version: int = 0

    # -- the cluster, as the replica layer uses it

    def broker_epoch(self) -> int:
        return self.epoch

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def connect(self, node: int) -> SimLeader:
        return SimLeader(self, self.others(node))

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return await self._ask(decide_alter_partition, request)

    async def _ask(self, decide: Decide[Q, R], request: Q) -> R:
        """Return the controller's answer; raise RequestTimedOut if there is none."""
        with trio.move_on_after(ANSWER_S):
            await self.links.cross(self.id, 0)
            answer = self.controller.decide(decide, request)
            await self.links.cross(0, self.id)
            return answer
        raise RequestTimedOut

    # -- its life

    @property
    def is_alive(self) -> bool:
        return self.services is not None

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition if the broker lives and has it."""
        services = self.services
        return None if services is None else services.replicas.partitions.find(topic, index)

    def kill(self) -> None:
        """End the process; the page cache stays."""
        self.disk = self.disk.after_kill()
        self._end()

    def lose_power(self) -> None:
        """End the machine; what was not synced may be lost."""
        self.disk = self.disk.power_loss(self.random)
        self._end()

    def _end(self) -> None:
        self.services = self.logs = None
        self.is_stopping = False
        self.lives += 1
        self.scope.cancel()

    @property
    def is_starting(self) -> bool:
        """Whether a process has been started and does not serve yet."""
        return self.started == self.lives and self.services is None

    def start(self, nursery: trio.Nursery) -> None:
        """Start a process; it runs until it is killed."""
        self.started = self.lives
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        with trio.CancelScope() as self.scope:
            await self._live()

    async def _live(self) -> None:
        directory = LogDirectory(self.disk, "/data")
        logs = LogManager([directory], self.clock, threads=DiskThreads(_at_once))
        number = iter(range(1, 1 << 30))
        replicas = ReplicaService(
            node=self.id,
            logs=logs,
            configs=lambda _: self.config,
            sessions=FetchSessions(10, 120.0, lambda: next(number)),
            lag_max_s=self.lag_max_s,
            cluster=self,
            fetcher_config=FetcherConfig(self.id, partition_max_bytes=1000, backoff_s=0.5),
        )
        logs.subscribe(
            on_written=replicas.on_log_written, on_offline=replicas.partitions.on_directory_failed
        )
        image = MetadataImage()
        services = Services(
            config=BrokerConfig({}), clock=self.clock, image=image, replicas=replicas, logs=logs
        )
        await logs.open(lambda _: self.config)
        metadata = self.controller.image
        logs.retire_strays(
            lambda partition, topic_id: self._is_known(metadata, partition, topic_id)
        )
        self._version = self.controller.version
        image, delta = apply(image, image_records(metadata))
        async with trio.open_nursery() as nursery:
            await nursery.start(logs.run)
            await nursery.start(replicas.run)
            await self._register(logs.previous_epoch)
            await replicas.applier.apply(delta)
            services.image = image
            self.services, self.logs = services, logs
            nursery.start_soon(self._follow_metadata, services)
            await self._beat()
            self.services = None
            nursery.cancel_scope.cancel()
        await logs.close(self.epoch)
        self.disk = self.disk.after_kill()
        self._end()

    @staticmethod
    def _is_known(image: MetadataImage, partition: TopicPartition, topic_id: bytes) -> bool:
        topic = image.topic(partition.topic)
        return topic is not None and topic.id == topic_id

    async def _register(self, previous_epoch: int) -> None:
        feature = BrokerRegistrationRequest.Feature
        request = BrokerRegistrationRequest(
            broker_id=self.id,
            cluster_id=self.controller.cluster_id,
            incarnation_id=bytes(8) + self.id.to_bytes(4) + self.lives.to_bytes(4),
            rack=None,
            log_dirs=[b"d" * 15 + bytes([self.id])],
            previous_broker_epoch=previous_epoch,
            features=[
                feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED.items()
            ],
        )
        while True:
            try:
                reply = await self._ask(decide_register_broker, request)
            except KafkaError:
                await trio.sleep(0.2)
            else:
                self.epoch = reply.broker_epoch
                return

    async def _follow_metadata(self, services: Services) -> None:
        """Apply what the controller publishes, late."""
        while True:
            await self.controller.wait_records(self._version)
            with trio.move_on_after(ANSWER_S) as attempt:
                await self.links.cross(0, self.id)
            if not attempt.cancelled_caught:
                records = self.controller.records_after(self._version)
                count = self.random.randint(1, len(records))
                await self._publish(services, records[:count])

    async def _publish(
        self, services: Services, batches: Sequence[Sequence[MetadataRecord]]
    ) -> None:
        for batch in batches:
            image, delta = apply(services.image, batch)
            await services.replicas.applier.apply(delta)
            services.image = image
            self._version += 1

    async def _beat(self) -> None:
        """Send heartbeats, which keep the broker unfenced, until it may stop."""
        while True:
            request = BrokerHeartbeatRequest(
                broker_id=self.id,
                broker_epoch=self.epoch,
                current_metadata_offset=self.controller.offset_of(self._version),
                want_fence=False,
                want_shut_down=self.is_stopping,
            )
            with suppress(KafkaError):
                reply = await self._ask(decide_heartbeat, request)
                if reply.should_shut_down:
                    return
            await trio.sleep(HEARTBEAT_S)
