"""A simulated broker: its machine, and the product's replica layer in the process on it.

The replicas, their logs, the application of metadata and the proposals of ISR changes are the
product's own. The simulation advances their coroutines itself, without trio:

* The application of a publication stops after each of its items, and any other step may follow.
* A request to the controller stops until the step that delivers its answer, or an error.

What was produced or deleted waits in :attr:`Replicas.produced` and :attr:`Replicas.deletions`;
:meth:`Replicas.settle` decides as the product does when such a wait ends.
"""

import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import attrs

from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.configs.load import broker_config
from kwire.configs.resource_types import TOPIC
from kwire.errors import KafkaError
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.records.build import New, batch
from kwire.records.header import parse
from kwire.replica import metadata_applier
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.isr_changes import IsrChanges
from kwire.replica.leader import PartitionLeader
from kwire.replica.log_config import log_config
from kwire.replica.partition import ACKS_ALL, Partition, ProduceResult
from kwire.replica.replicas import ReplicaService
from kwire.types import TopicPartition
from simulation.controller.world import SETTINGS, SimBroker, World
from simulation.disk import SimDisk
from simulation.replication.contents import Decoded

NAME: Final = "orders"
PARTITION: Final = TopicPartition(NAME, 0)
TIME_MS: Final = 1_700_000_000_000
LAG_MAX_S: Final = 3.0
_CONFIG: Final = broker_config(SETTINGS)
_CHECKPOINTS: Final = (names.HIGH_WATERMARKS, names.LOG_STARTS)


class Pauses:
    """Takes the place of :class:`kwire.drive.Slices`: every pause is a stop."""

    def __init__(self, now: Callable[[], float]) -> None:
        del now

    @types.coroutine
    def pause(self) -> Generator[None, None, None]:
        """Stop until the simulation continues the work."""
        yield


@contextmanager
def stopping_after_each_item() -> Iterator[None]:
    """Return a context in which the application of metadata stops after each item."""
    with patch.object(metadata_applier, "Slices", Pauses):
        yield


@types.coroutine
def _call_controller(
    request: AlterPartitionRequest,
) -> Generator[AlterPartitionRequest, AlterPartitionResponse, AlterPartitionResponse]:
    return (yield request)


@attrs.frozen
class WorldClock:
    """The clock of all machines."""

    world: World

    def now(self) -> float:
        return self.world.now

    def now_ms(self) -> int:
        return TIME_MS + int(self.world.now * 1000)


class Produced(NamedTuple):
    """A record that waits for its acknowledgement."""

    value: bytes
    result: ProduceResult


class Deletion(NamedTuple):
    """A DeleteRecords request that waits for the followers."""

    offset: int
    leader_epoch: int


class Settled(NamedTuple):
    """The promises that a broker has just made to clients."""

    acknowledged: list[Produced]
    deleted: list[Deletion]


@attrs.define(eq=False)
class Replicas:
    """The replica layer of a running broker."""

    process: SimBroker
    world: World
    directory: LogDirectory
    image: MetadataImage = attrs.field(factory=MetadataImage)
    """The newest metadata of which the application has begun."""
    batch_count: int = 0
    """The number of batches of the metadata log that the image contains."""
    produced: list[Produced] = attrs.field(factory=list)
    deletions: list[Deletion] = attrs.field(factory=list)
    service: ReplicaService = attrs.field(init=False)
    changes: IsrChanges = attrs.field(init=False)
    _stored_start: tuple[PartitionLog, int] | None = None
    """The log with the log start that was stored last."""
    in_flight: AlterPartitionRequest | None = None
    """The request with proposals that waits for its answer."""
    _publication: Coroutine[None, None, None] | None = None
    # Any: it takes None at first and an answer then; the type of its result is private.
    _sending: Coroutine[AlterPartitionRequest, Any, Any] | None = None

    def __attrs_post_init__(self) -> None:
        clock, random = WorldClock(self.world), Random(self.process.id)
        logs = LogManager([self.directory], clock, random=random)
        sessions = FetchSessions(0, 0.0, lambda: 1)
        service = ReplicaService(
            self.process.id, logs, self._topic_config, sessions, clock.now, lag_max_s=LAG_MAX_S
        )
        self.service = service
        self.changes = IsrChanges(
            self.process.id,
            lambda: self.process.epoch,
            _call_controller,
            service._completion,
            clock.now,
            LAG_MAX_S,
        )
        service.roles.subscribe(self.changes.on_role_changed)
        service.applier.on_brokers_changed = self.changes.on_brokers_changed
        logs.subscribe(on_offline=service.partitions.on_directory_failed)
        for _ in self.directory.load(lambda topic: LogConfig(), clock.now_ms()):
            pass

    def _topic_config(self, topic: str) -> LogConfig:
        metadata = self.service.partitions.image
        return log_config({} if metadata is None else metadata.config(TOPIC, topic), _CONFIG)

    @property
    def id(self) -> int:
        return self.process.id

    @property
    def partition(self) -> Partition | None:
        """The partition; None if it is not assigned here, or its directory has failed."""
        return self.service.partitions.find(*PARTITION)

    @property
    def original(self) -> Partition | None:
        """The partition if this broker believes that it leads it."""
        partition = self.partition
        return None if partition is None or partition.leader is None else partition

    @property
    def copy(self) -> Partition | None:
        """The partition if this broker follows another one."""
        partition = self.partition
        return None if partition is None or partition.leader is not None else partition

    @property
    def log(self) -> PartitionLog | None:
        return self.directory.logs.get(PARTITION)

    # Metadata.

    @property
    def is_applying(self) -> bool:
        """True while a publication is applied in part."""
        return self._publication is not None

    def publish(self, count: int) -> None:
        """Begin to apply the next ``count`` batches of the metadata log as one publication."""
        batches = self.world.log[self.batch_count :][:count]
        records = [record for _, records in batches for record in records]
        self.batch_count += len(batches)
        self.image, delta = apply(self.image, records, batches[-1][0])
        self._publication = self.service.applier.apply(delta)
        self.apply_next()

    def apply_next(self) -> None:
        """Apply the publication up to its next pause."""
        assert self._publication is not None
        try:
            self._publication.send(None)
        except StopIteration:
            self._publication = None

    # The proposals of a leader.

    def propose(self) -> AlterPartitionRequest | None:
        """Return the request with the next proposals, if there are any and no other is in flight.

        Late followers are looked for as the product's timer does.
        """
        if self.in_flight is not None:
            return None
        partition, changes = self.original, self.changes
        if partition is not None and partition.leader is not None and partition.leader.followers:
            changes._check_followers(partition, partition.leader)
        proposals = changes._next_proposals()
        if proposals:
            self._sending = changes._send(proposals)
            self.in_flight = self._sending.send(None)
        return self.in_flight

    def on_answer(self, answer: AlterPartitionResponse | KafkaError) -> None:
        """Continue with the answer to the request in flight, or with an error in its place."""
        assert self._sending is not None
        sending, self._sending, self.in_flight = self._sending, None, None
        try:
            if isinstance(answer, KafkaError):
                sending.throw(answer)
            else:
                sending.send(answer)
        except StopIteration as end:
            for partition, pending in end.value.items():
                self.changes._queue(pending).setdefault(partition, pending)

    # Clients.

    def produce(self, value: bytes) -> None:
        """Append a record with acks=all, unless the leader rejects it."""
        partition = self.original
        data = batch([New(None, value)], timestamp_ms=TIME_MS)
        if partition is not None:
            with suppress(KafkaError):
                result = self.service.append(partition, data, parse(data), ACKS_ALL, TIME_MS)
                self.produced.append(Produced(value, result))

    def delete_records(self, offset: int) -> None:
        """Delete the records before an offset."""
        partition = self.original
        if partition is not None:
            self.service.delete_before(partition, offset)
            self.keep_start(partition.log)
            self.deletions.append(Deletion(offset, partition.leader_epoch))

    def settle(self) -> Settled:
        """End the waits that are over; return those that ended with a success."""
        settled = Settled([], [])
        for produced in list(self.produced):
            leader = self._leader_since(produced.result.leader_epoch)
            if leader is None or leader.log.high_watermark >= produced.result.end_offset:
                self.produced.remove(produced)
                if leader is not None and not leader.under_min_isr:
                    settled.acknowledged.append(produced)
        for deletion in list(self.deletions):
            leader = self._leader_since(deletion.leader_epoch)
            if leader is None or leader.low_watermark(leader.log.log_start) >= deletion.offset:
                self.deletions.remove(deletion)
                if leader is not None:
                    settled.deleted.append(deletion)
        return settled

    def _leader_since(self, epoch: int) -> PartitionLeader | None:
        """Return the leader's state if this broker has led continuously since ``epoch``."""
        partition = self.partition
        if partition is not None:
            with suppress(KafkaError):
                return self.service._checked_leader(partition, epoch)
        return None

    # The disk.

    def keep_start(self, log: PartitionLog) -> None:
        """Let a log start survive a restart, before others rely on it."""
        if self._stored_start != (log, log.log_start):
            self.store_checkpoints()
            self._stored_start = log, log.log_start

    def store_checkpoints(self) -> None:
        """Write the high watermark and the log start to the disk, and sync them."""
        files = [(name, self.directory.checkpoint(name)) for name in _CHECKPOINTS]
        self.directory.write_checkpoints(files)

    def close(self) -> None:
        """Sync the log and mark the directory as cleanly closed."""
        if self.log is not None:
            self.log.flush_state.flush()
        self.directory.finish(self.process.epoch)


@attrs.define(eq=False)
class Machine:
    """A machine with a disk, on which a broker runs or not."""

    process: SimBroker
    disk: SimDisk = attrs.field(factory=SimDisk)
    replicas: Replicas | None = None
    """The replica layer of the running broker; None if none runs."""
    has_log: bool = False
    content: Decoded = attrs.field(factory=Decoded)
    """The records of the log at the last check; while no broker runs, those on the disk."""
    has_lost_power: bool = False
    """True from a loss of power until the controller has registered the broker again."""
    speed: float = 1.0
    """The probability that the broker begins to apply newer metadata when it may."""

    @property
    def id(self) -> int:
        return self.process.id

    def look(self) -> None:
        """Read the log of a running broker for the checks, unless its disk has failed."""
        if self.replicas is None or self.disk.failed is not None:
            return
        log = self.replicas.log
        self.has_log = log is not None
        if log is not None:
            self.content.look(log)
