"""The check of what refuses a transactional producer for good: it must have happened.

A client whose producer is fenced ends its transaction and its work. So the state
that fences it must be committed when the answer comes: had it been on the coordinator alone, it
would be gone with the coordinator, and the client would have been stopped for nothing. And nothing
else may stop a producer: moves of leaders and new leader epochs are no fault of the transaction.
The one exception is a gap that deleted records leave, which :func:`_check_gap` describes.
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
"""By how much a transaction may time out early: clocks are read in milliseconds."""
FENCED: Final = frozenset((errors.InvalidProducerEpoch.code, errors.ProducerFenced.code))
REFUSED: Final = FENCED | {errors.InvalidTxnState.code}
"""Errors that end a producer's work.

The last one answers the commit of a transaction that has timed out: its abort raised the epoch by
one, so the commit looks like the repetition of an end with the other outcome, as in Kafka.
"""


class Beginning(NamedTuple):
    """The beginning of a transaction."""

    at: float
    coordinator_epoch: int
    """The leader epoch of the coordinator's partition."""

    @classmethod
    def now(cls, world: World, name: str) -> "Beginning":
        return cls(trio.current_time(), _coordinator_epoch(world, name))


class LastBatch(NamedTuple):
    """The last acknowledged batch of a producer in a partition; its offset is -1 without one."""

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
    """Check that an error that ends a producer's work comes from committed state.

    ``after``: the batch before the one that was refused.

    What ends a transaction without a rival is its time-out. A coordinator that has led since the
    transaction began may not take a clock that was set for the passing of time.
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

    A producer that sends one batch after the other leaves no gap, so a leader that finds one must
    have lost what it knew of the producer. That is right in one case: the records were deleted, and
    the leader's replica was made later, behind them. It knows the producer from a transaction
    marker at most, so it cannot tell deleted batches from lost ones, and refuses, as Kafka does.
    A client (Java, librdkafka) is not fenced by that: it aborts the transaction and goes on with a
    new epoch (KIP-360).
    """
    producer_id, epoch = producer
    for machine in world.machines.values():
        partition = machine.partition(TOPIC, after.partition)
        if partition is None or not 0 <= after.offset < partition.log.segments[0].base_offset:
            continue
        state = partition.log.producers.get(producer_id)
        if state is None or (state.epoch == epoch and not state.batches):
            return
    demand(False, f"{name}: no replica of {after.partition} begins behind {after} of {producer}")


def _coordinator_epoch(world: World, name: str) -> int:
    index = partition_for(name, TRANSACTION_PARTITIONS)
    state = world.books.image.partition(TRANSACTION_STATE, index)
    return -1 if state is None else state.leader_epoch


def _later(log: PartitionLog, name: str, producer: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the producers of a transactional id that are not older than this one."""
    with cast("SimDisk", log.disk).without_faults():
        data = raw(log, log.start_offset)
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
