"""The check that a transactional producer is fenced only because of committed state.

A client whose producer is fenced gives up its transaction and stops. So the state that fences it
must be committed before the response: if only the coordinator had the state, it would be lost with
the coordinator, and the client would have stopped for no reason. Nothing else may stop a producer,
in particular no leader change and no new leader epoch. The exceptions are a gap left by deleted
records (:func:`_check_gap`) and a batch that a former leader has judged (:func:`_former_leaders`).
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, cast

import trio

from kwire import errors
from kwire.coordinator.partitioning import partition_for
from kwire.log.partition_log import PartitionLog
from kwire.records.header import headers
from kwire.records.iterate import records
from kwire.transaction.records import load
from kwire.types import TRANSACTION_STATE
from simulation.disk import SimDisk
from simulation.replication.checks import TOPIC
from simulation.replication.clients import World
from simulation.replication.contents import raw
from simulation.replication.history import demand
from simulation.replication.settings import TIMEOUT_MS, TRANSACTION_PARTITIONS

_EARLY_S: Final = 0.5
"""The time by which a transaction may time out early, because clocks are read in milliseconds."""
FENCED: Final = frozenset((errors.InvalidProducerEpoch.code, errors.ProducerFenced.code))
REFUSED: Final = FENCED | {errors.InvalidTxnState.code}
"""The error codes after which a producer stops.

INVALID_TXN_STATE rejects the commit of a transaction that has timed out: the abort increased the
epoch by one, so the commit looks like a retried end with the opposite outcome, as in Kafka.
"""


class Beginning(NamedTuple):
    """The start of a transaction: its time, and the leader epoch of its coordinator."""

    at: float
    coordinator_epoch: int
    """The leader epoch of the coordinator's partition."""

    @classmethod
    def now(cls, world: World, name: str) -> "Beginning":
        return cls(trio.current_time(), _coordinator_epoch(world, name))


class LastBatch(NamedTuple):
    """The last acknowledged batch of a producer in a partition; without one, the offset is -1."""

    partition: int
    offset: int


def check_refusal(
    world: World,
    name: str,
    producer: tuple[int, int],
    code: int,
    begun: Beginning,
    after: LastBatch | None = None,
) -> None:
    """Check that an error that stops a producer comes from committed state.

    ``after``: the batch before the rejected one.

    Without a rival, only its timeout ends a transaction. A coordinator that has led since the start
    of the transaction must not time it out because a wall clock was set forward.
    """
    if after is not None and code == errors.OutOfOrderSequenceNumber.code:
        _check_gap(world, name, producer, after)
        return
    demand(code in REFUSED, f"{name}: {producer} is refused with {code}, though nothing fenced it")
    if name not in world.rivals and begun.coordinator_epoch == _coordinator_epoch(world, name):
        age_s = trio.current_time() - begun.at
        demand(
            age_s >= TIMEOUT_MS / 1000 - _EARLY_S,
            f"{name}: {producer} is refused with {code} {age_s:.1f} s after the beginning",
        )
    index = partition_for(name, TRANSACTION_PARTITIONS)
    if after is not None and (
        _former_leaders(world, TOPIC, after.partition)
        & _former_leaders(world, TRANSACTION_STATE, index)
    ):
        return
    state = world.books.image.partition(TRANSACTION_STATE, index)
    for node in () if state is None else state.isr:
        machine = world.machines[node]
        partition = machine.partition(TRANSACTION_STATE, index)
        if partition is not None and machine.is_registered:
            demand(
                any(later != producer for later in _later(partition.log, name, producer)),
                f"{name}: {producer} is refused with {code}, and in-sync replica {node} has no "
                "later producer",
            )


def _check_gap(world: World, name: str, producer: tuple[int, int], after: LastBatch) -> None:
    """Check OUT_OF_ORDER_SEQUENCE_NUMBER for the batch after an acknowledged one.

    A producer that sends one batch at a time leaves no gap, so a leader that finds one has lost the
    producer's state. This is allowed in two cases. The records were deleted, and the leader's
    replica was created later and starts after them: it knows the producer at most from a
    transaction marker, so it cannot distinguish deleted batches from lost ones, and rejects the
    batch, as Kafka does. Or a former leader has answered, which has not heard of its successor and
    of the batch that this one acknowledged; real clients do not return to a leader of an earlier
    epoch. Neither fences a client (Java, librdkafka): it aborts the transaction and continues with
    a new epoch (KIP-360).
    """
    producer_id, epoch = producer
    state_of_partition = world.books.image.partition(TOPIC, after.partition)
    leader = None if state_of_partition is None else state_of_partition.leader
    for node, machine in world.machines.items():
        partition = machine.partition(TOPIC, after.partition)
        if partition is None:
            continue
        if node != leader and partition.log.writer.written_offset <= after.offset:
            return
        if not 0 <= after.offset < partition.log.segments[0].base_offset:
            continue
        state = partition.log.producers.get(producer_id)
        if state is None or (state.epoch == epoch and not state.batches):
            return
    demand(False, f"{name}: all replicas of {after.partition} know of {after} of {producer}")


def _former_leaders(world: World, topic: str, partition: int) -> set[int]:
    """Return the nodes that still lead a partition, because they have not heard of a later leader.

    A former leader that was the coordinator as well asks itself whether a batch belongs to an open
    transaction. It does not know a producer epoch that the next coordinator has given out, and
    rejects the batch, as Kafka does. The client then aborts the transaction; real clients do not
    even return to a leader of an earlier epoch.
    """
    state = world.books.image.partition(topic, partition)
    leading = {
        node: led.leader
        for node, machine in world.machines.items()
        if (led := machine.partition(topic, partition)) is not None and led.leader is not None
    }
    return {
        node
        for node, leader in leading.items()
        if state is not None and leader.leader_epoch < state.leader_epoch
    }


def _coordinator_epoch(world: World, name: str) -> int:
    index = partition_for(name, TRANSACTION_PARTITIONS)
    state = world.books.image.partition(TRANSACTION_STATE, index)
    return -1 if state is None else state.leader_epoch


def _later(log: PartitionLog, name: str, producer: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the producers of a transactional id in the log, from ``producer`` onwards."""
    with cast("SimDisk", log.disk).without_faults():
        data = raw(log, log.log_start)
    has_begun = False
    for place, header in headers(data):
        if header.is_control:
            continue
        for record in records(data, place, header):
            entry = load(bytes(record.key or b""), record.value)
            value = None if entry is None or entry.key.transactional_id != name else entry.value
            if value is None:
                continue
            current = value.producer_id, value.producer_epoch
            has_begun = has_begun or current == producer
            if has_begun:
                yield current
                if value.next_producer_id >= 0:
                    yield value.next_producer_id, value.next_producer_epoch
