"""Fetch of a partition with known damage: an error there, records everywhere else."""

import pytest

from kwire import errors
from kwire.log.segments.damage import Damage, DamagedRange
from kwire.replica.partition import Partition
from tests.support.handlers.broker import Broker, broker, create_topic, write
from tests.support.handlers.fetch import at, fetch, values


async def damaged_topic(subject: Broker, *, is_under_repair: bool = False) -> Partition:
    """Create a topic of four batches, the third of which is known to be damaged."""
    partition = await create_topic(subject)
    for value in (b"a", b"b", b"c", b"d"):
        write(subject, partition, value)
    segment = partition.log.segments.active
    position, header = list(segment.scan())[2]
    end_position = position + header.size
    segment.damage = Damage([DamagedRange(2, 3, position, end_position, "rot", is_under_repair)])
    return partition


@pytest.mark.parametrize("version", [4, 11, 12, 18])
@pytest.mark.parametrize("isolation", [0, 1])
async def test_fetch_of_a_damaged_batch_is_corrupt_message(version: int, isolation: int):
    """Invariants 80 and 99: other partitions of the request are served."""
    subject = broker()
    await damaged_topic(subject)
    write(subject, await create_topic(subject, "other"), b"x")
    data, other = await fetch(
        subject, at("t", 2), at("other"), version=version, isolation_level=isolation
    )
    assert data.error_code == errors.CorruptMessage.code
    assert len(data.records) == 0
    assert values(other) == [(0, b"x")]


async def test_fetch_during_the_repair_is_a_storage_error():
    """Clients refresh their metadata and retry."""
    subject = broker()
    await damaged_topic(subject, is_under_repair=True)
    (data,) = await fetch(subject, at("t", 2))
    assert data.error_code == errors.KafkaStorageError.code


async def test_batches_around_a_damaged_one_are_served():
    """Invariant 7."""
    subject = broker()
    await damaged_topic(subject)
    (data,) = await fetch(subject, at("t", 0))
    assert values(data) == [(0, b"a"), (1, b"b")]
    (data,) = await fetch(subject, at("t", 3))
    assert values(data) == [(3, b"d")]


async def test_fetch_of_a_damaged_batch_does_not_wait_for_more_bytes(autojump_clock):
    subject = broker()
    await damaged_topic(subject)
    (data,) = await fetch(subject, at("t", 2), max_wait_ms=100_000, min_bytes=1 << 20)
    assert data.error_code == errors.CorruptMessage.code
