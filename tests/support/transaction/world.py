"""A transaction coordinator over a log in memory, and brokers whose partitions get its markers.

A partition knows which producer has written what is not ended yet, as a real log does, and refuses
the markers of a former coordinator.
"""

from collections.abc import Mapping, Sequence

import attrs
import trio
import trio.lowlevel
import trio.testing

from kwire.errors import (
    NONE,
    InvalidProducerEpoch,
    KafkaError,
    NotLeaderOrFollower,
    TransactionCoordinatorFenced,
)
from kwire.replica.transaction_ports import TransactionMarker
from kwire.transaction.coordinator import TransactionCoordinator
from kwire.transaction.model import Transaction
from kwire.transaction.settings import TransactionSettings
from kwire.transaction.shard import AddPartitions, EndTransaction
from kwire.transaction.transitions import Producer
from kwire.types import TRANSACTION_STATE, TopicPartition
from tests.support.clock import JumpingClock
from tests.support.coordinator.node import FakeLog

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NAME = "name"
INDEX = 0


@attrs.define
class DataPartition:
    """A partition of a topic: its leader, its open transactions, its markers."""

    leader: int = 1
    open_epochs: dict[int, int] = attrs.field(factory=dict)
    """The epoch of each producer with an open transaction."""
    newest_epochs: dict[int, int] = attrs.field(factory=dict)
    markers: list[TransactionMarker] = attrs.field(factory=list)
    coordinator_epoch: int = -1
    """The newest coordinator's."""

    def write(self, producer: Producer) -> bool:
        """Write a record; False if the producer is fenced here."""
        if self.newest_epochs.get(producer.id, -1) > producer.epoch:
            return False
        self.newest_epochs[producer.id] = producer.epoch
        self.open_epochs[producer.id] = producer.epoch
        return True

    def end(self, marker: TransactionMarker) -> int:
        if marker.coordinator_epoch < self.coordinator_epoch:
            return TransactionCoordinatorFenced.code
        if marker.producer_epoch < self.newest_epochs.get(marker.producer_id, -1):
            return InvalidProducerEpoch.code
        self.coordinator_epoch = marker.coordinator_epoch
        self.newest_epochs[marker.producer_id] = marker.producer_epoch
        self.open_epochs.pop(marker.producer_id, None)
        self.markers.append(marker)
        return NONE


@attrs.define
class FakeBrokers:
    """The brokers of a cluster."""

    partitions: dict[TopicPartition, DataPartition] = attrs.field(factory=dict)
    failures: list[Exception] = attrs.field(factory=list)
    """The errors of the next requests."""
    refusals: list[int] = attrs.field(factory=list)
    """The codes of the next markers."""
    answers_lost: int = 0
    """The number of the next requests that are served without an answer."""
    may_serve: trio.Event | None = None
    """Set when requests may be served; None if they may be at once."""
    requests: list[tuple[int, Sequence[TransactionMarker]]] = attrs.field(factory=list)

    def leader_of(self, partition: TopicPartition) -> int | None:
        state = self.partitions.get(partition)
        return None if state is None else state.leader

    async def write_markers(
        self, broker: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, int]]:
        self.requests.append((broker, markers))
        await trio.lowlevel.checkpoint()
        if self.may_serve is not None:
            await self.may_serve.wait()
        if self.failures:
            raise self.failures.pop()
        results = [
            {partition: self._end(broker, partition, marker) for partition in marker.partitions}
            for marker in markers
        ]
        if self.answers_lost:
            self.answers_lost -= 1
            raise NotLeaderOrFollower
        return results

    def _end(self, broker: int, partition: TopicPartition, marker: TransactionMarker) -> int:
        state = self.partitions.get(partition)
        if state is None or state.leader != broker:
            return NotLeaderOrFollower.code
        return self.refusals.pop() if self.refusals else state.end(marker)


@attrs.define
class World:
    """One coordinator at a time, its log, and the brokers."""

    nursery: trio.Nursery
    log: FakeLog = attrs.field(factory=FakeLog)
    clock: JumpingClock = attrs.field(factory=JumpingClock)
    brokers: FakeBrokers = attrs.field(factory=FakeBrokers)
    settings: TransactionSettings = attrs.field(factory=TransactionSettings)
    version: int = 2
    """The level of `transaction.version`."""
    epoch: int = 0
    """The coordinator's."""
    coordinator: TransactionCoordinator = attrs.field(init=False)
    _scope: trio.CancelScope | None = None
    id_failures: list[KafkaError] = attrs.field(factory=list)
    """The errors of the next requests for a producer id."""
    _next_id: int = 1000

    def __attrs_post_init__(self) -> None:
        self.brokers.partitions = {name: DataPartition() for name in (T0, T1, U0)}

    async def start(self) -> None:
        """Let a new coordinator take over, as after the end of the last one."""
        self.stop()
        self.epoch += 1
        self.coordinator = TransactionCoordinator(
            log=self.log,
            clock=self.clock,
            brokers=self.brokers,
            settings=lambda: self.settings,
            server_version=lambda: self.version,
            partitions=lambda: 1,
            take_id=self._take_id,
        )
        self._scope = await self.nursery.start(self._run, self.coordinator)
        self.coordinator.on_role_changed(Led(leader_epoch=self.epoch))
        await trio.testing.wait_all_tasks_blocked()

    def stop(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _run(
        self, coordinator: TransactionCoordinator, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(coordinator.run)
                task_status.started(scope)

    async def _take_id(self) -> int:
        if self.id_failures:
            raise self.id_failures.pop()
        self._next_id += 1
        return self._next_id

    async def init(
        self, name: str = NAME, timeout_ms: int = 60_000, producer: Producer | None = None
    ) -> Producer:
        return await self.coordinator.initialize(name, timeout_ms, producer)

    async def add(
        self, producer: Producer, *partitions: TopicPartition, name: str = NAME, version: int = 2
    ) -> None:
        """Add partitions and write a record to each."""
        request = AddPartitions(name, producer, frozenset(partitions), version)
        await self.coordinator.add_partitions(request)
        for partition in partitions:
            if partition in self.brokers.partitions:
                self.brokers.partitions[partition].write(producer)

    async def end(
        self, producer: Producer, *, commit: bool, name: str = NAME, version: int = 2
    ) -> Producer:
        request = EndTransaction(name, producer, version, commit)
        return await self.coordinator.end(request)

    async def settle(self, seconds: float = 30.0) -> None:
        """Let all that is due within some seconds happen."""
        await trio.sleep(seconds)

    def set_epoch(self, epoch: int, name: str = NAME) -> None:
        """Move a transactional id to a producer epoch."""
        (shard,) = self.coordinator.service.machines()
        shard.transactions[name] = attrs.evolve(shard.transactions[name], producer_epoch=epoch)

    async def state(self, name: str = NAME) -> Transaction:
        return await self.coordinator.describe(name)

    def directions(self, partition: TopicPartition = T0) -> list[bool]:
        """Return whether each marker of a partition commits."""
        return [marker.commit for marker in self.brokers.partitions[partition].markers]

    @property
    def has_open_transactions(self) -> bool:
        return any(partition.open_epochs for partition in self.brokers.partitions.values())


@attrs.frozen(kw_only=True)
class Led:
    """A partition of `__transaction_state` that the coordinator's node leads."""

    topic: str = TRANSACTION_STATE
    partition: int = INDEX
    leader: object | None = True
    leader_epoch: int
