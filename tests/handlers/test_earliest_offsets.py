"""The offsets of the log start and the local start, and fetches of remote records (KIP-405)."""

import pytest

from kwire import errors
from tests.support.handlers.broker import Broker, broker, create_topic, write
from tests.support.handlers.fetch import at, fetch, values
from tests.support.handlers.list_offsets import offsets

EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -2, -4, -5, -6
REFUSED = (errors.UnsupportedVersion.code, -1, -1, -1)
NONE = (0, -1, -1, -1)
SINCE = {EARLIEST: 1, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


async def broker_of_ten(*, local_start: int = 0) -> Broker:
    """Return a broker with ten records, one a segment; those below ``local_start`` are remote."""
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2))
    for number in range(10):
        write(subject, partition, b"%d" % number)
        partition.log.roll(0)
    partition.log.advance_high_watermark(10)
    if local_start:
        partition.log.copied_end = local_start
        partition.log.drop_segments(local_start)
    return subject


@pytest.mark.parametrize("version", [4, 7, 8, 9, 10, 11])
@pytest.mark.parametrize("deleted_end", [0, 4])
async def test_special_offsets_are_those_of_kafka_without_tiering(
    version: int, deleted_end: int
) -> None:
    """Invariant 17: the answers of Apache Kafka 4.3.1 to the same requests."""
    subject = await broker_of_ten()
    subject.replicas.partitions.get("t", 0).log.advance_log_start(deleted_end)
    answers = {EARLIEST: (0, deleted_end, -1, 0), EARLIEST_LOCAL: (0, deleted_end, -1, 0)}
    for timestamp, since in SINCE.items():
        answer = await offsets(subject, timestamp, version=version)
        expected = answers.get(timestamp, NONE) if version >= since else REFUSED
        assert answer == expected, timestamp


async def test_earliest_offsets_differ_while_records_are_remote() -> None:
    subject = await broker_of_ten(local_start=6)
    assert (await offsets(subject, EARLIEST))[:2] == (0, 0)
    assert (await offsets(subject, EARLIEST_LOCAL))[:2] == (0, 6)


@pytest.mark.parametrize(
    ("replica_id", "error"),
    [(-1, errors.KafkaStorageError), (2, errors.OffsetMovedToTieredStorage)],
)
async def test_fetch_of_remote_records_tells_why_they_are_not_here(
    replica_id: int, error: type[errors.KafkaError]
) -> None:
    """Invariant 16: OFFSET_OUT_OF_RANGE would make a consumer skip the records."""
    subject = await broker_of_ten(local_start=6)
    for offset in (0, 5):
        (data,) = await fetch(subject, at("t", offset), replica_id=replica_id, max_wait_ms=60_000)
        assert (data.error_code, bytes(data.records)) == (error.code, b"")
    (data,) = await fetch(subject, at("t", 6), replica_id=replica_id)
    assert (data.error_code, data.log_start_offset, values(data)[0]) == (0, 0, (6, b"6"))
