"""The check of what refuses a transactional producer for good: it must have happened.

A client whose producer is fenced ends its transaction and its work. So the state
that fences it must be committed when the answer comes: had it been on the coordinator alone, it
would be gone with the coordinator, and the client would have been stopped for nothing. And nothing
else may stop a producer: moves of leaders and new leader epochs are no fault of the transaction.
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


def check_refusal(
    world: World, name: str, producer: tuple[int, int], code: int, begun: Beginning
) -> None:
    """Check that an error that ends a producer's work comes from committed state.

    What ends a transaction without a rival is its time-out. A coordinator that has led since the
    transaction began may not take a clock that was set for the passing of time.
    """
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
