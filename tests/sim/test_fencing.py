"""Refusals of transactional batches that the simulation of replication takes for right."""

from types import SimpleNamespace
from typing import cast

import pytest

from kwire import errors
from kwire.log.partition_log import PartitionLog, create
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from simulation.replication.clients import World
from simulation.replication.fencing import Beginning, LastBatch, check_refusal
from tests.support.log.batches import append, end_transaction

PRODUCER = 7, 0
LAST = 2
"""The offset of the producer's last batch."""


def log_from(base_offset: int, batches: int) -> PartitionLog:
    """Return a log that begins at an offset, with this many batches and a marker behind them."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=0, base_offset=base_offset)
    for sequence in range(batches):
        append(log, [b"v"], producer_id=7, producer_epoch=0, base_sequence=sequence)
    end_transaction(log, 7, commit=True)
    return log


def check(*logs: PartitionLog, last_offset: int = LAST) -> None:
    """Check a gap after this offset in a cluster whose brokers have these logs; the first leads."""
    partitions = [SimpleNamespace(log=log) for log in logs]
    machines = {
        node: SimpleNamespace(partition=lambda *_, copy=partition: copy)
        for node, partition in enumerate(partitions)
    }
    image = SimpleNamespace(partition=lambda *_: SimpleNamespace(leader=0))
    books = SimpleNamespace(image=image)
    world = cast("World", SimpleNamespace(machines=machines, books=books))
    code = errors.OutOfOrderSequenceNumber.code
    check_refusal(world, "tx", PRODUCER, code, Beginning(0.0, 0), LastBatch(0, last_offset))


def test_gap_is_right_if_a_replica_begins_behind_the_deleted_batches() -> None:
    check(log_from(0, batches=3), log_from(LAST + 1, batches=0))


def test_gap_is_right_if_a_former_leader_lacks_the_last_batch() -> None:
    check(log_from(0, batches=3), log_from(0, batches=1))


def test_gap_is_wrong_if_only_the_leader_lacks_the_last_batch() -> None:
    with pytest.raises(AssertionError, match="all replicas"):
        check(log_from(0, batches=1), log_from(0, batches=3))


def test_gap_is_wrong_if_every_replica_has_the_last_batch() -> None:
    with pytest.raises(AssertionError, match="all replicas"):
        check(log_from(0, batches=3), log_from(LAST, batches=1))


def test_gap_is_wrong_if_the_replica_behind_it_still_knows_a_batch() -> None:
    with pytest.raises(AssertionError, match="all replicas"):
        check(log_from(LAST + 1, batches=1))


def test_gap_before_the_first_acknowledged_batch_is_wrong() -> None:
    with pytest.raises(AssertionError, match="all replicas"):
        check(log_from(LAST + 1, batches=0), last_offset=-1)
