"""Produce: batches whose header is right and whose records are not."""

from pathlib import Path

import pytest

from kwire import errors
from kwire.records import build, compression, header
from kwire.records.build import New, encode_record
from kwire.testing.wire import TrioWireClient
from tests.support.handlers.broker import NOW_MS, broker, create_topic, one_batch, read_log
from tests.support.handlers.produce import produce, request
from tests.support.server.nodes import create, running

DAMAGED = build.of_payload(encode_record(0, 0, b"key", b"value") + b"\0", 1, NOW_MS)
LARGE = b"".join(encode_record(0, i, b"key", bytes(100)) for i in range(5000))


async def test_damaged_records_are_refused_alone():
    subject = broker()
    partition = await create_topic(subject)
    other = await create_topic(subject, "other")
    damaged, stored = await produce(subject, ("t", 0, DAMAGED), ("other", 0, one_batch(b"a")))
    assert (damaged.error_code, damaged.base_offset) == (errors.InvalidRecord.code, -1)
    assert "bytes behind the last record" in (damaged.error_message or "")
    assert stored.error_code == 0
    assert (partition.log.end_offset, other.log.end_offset) == (0, 1)


@pytest.mark.parametrize("codec", range(5))
async def test_large_batches_are_checked_too(codec: int):
    subject = broker()
    partition = await create_topic(subject)
    head = header.parse(build.of_payload(b"", 5000, NOW_MS))._replace(attributes=codec)
    for payload, code in ((LARGE, 0), (LARGE[:-1], errors.InvalidRecord.code)):
        batch = build.assemble(head, compression.compress(codec, payload))
        (answer,) = await produce(subject, ("t", 0, batch))
        assert answer.error_code == code
    assert partition.log.end_offset == 5000


async def test_unchecked_records_are_stored_except_in_compacted_topics():
    subject = broker()
    subject.replicas.checks_records = False
    partition = await create_topic(subject)
    compacted = await create_topic(subject, "compact", cleanup_compact=True)
    stored, refused = await produce(subject, ("t", 0, DAMAGED), ("compact", 0, DAMAGED))
    assert (stored.error_code, refused.error_code) == (0, errors.InvalidRecord.code)
    assert (partition.log.end_offset, compacted.log.end_offset) == (1, 0)


async def test_stored_batch_has_the_largest_timestamp_of_its_records():
    subject = broker()
    partition = await create_topic(subject)
    batch = build.batch(
        [New(b"k", b"", (), NOW_MS), New(b"k", b"", (), NOW_MS + 5)], timestamp_ms=0
    )
    lying = header.parse(batch)._replace(max_timestamp=NOW_MS - 1000)
    sent = build.assemble(lying, batch[header.HEADER_SIZE :])
    (answer,) = await produce(subject, ("t", 0, sent))
    assert answer.error_code == 0
    stored = read_log(partition)
    assert header.crc_ok(stored, 0, header.parse(stored))
    assert header.parse(stored).max_timestamp == NOW_MS + 5
    assert stored[header.HEADER_SIZE :] == batch[header.HEADER_SIZE :]


def _spread(*ages_ms: int, codec: int = 0, filler: int = 0) -> bytes:
    """Return a batch whose records are so many milliseconds old, with large values if wanted."""
    news = [New(b"k", bytes(filler), (), NOW_MS - age) for age in ages_ms]
    return build.batch(news, timestamp_ms=0, compression=codec)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("filler", [0, 100_000])
async def test_each_record_has_to_be_recent_enough(codec: int, filler: int):
    """Kafka judges each record; the answer names those that are too old or too new.

    A producer fails only these for their timestamps.
    """
    subject = broker()
    partition = await create_topic(
        subject, timestamp_before_max_ms=1000, timestamp_after_max_ms=1000
    )
    for ages, bad in (
        ((0, 1000, -1000), []),
        ((0, 1001, 5, 2000), [1, 3]),
        ((-1000, 3, -1001), [2]),
        ((2000, 0), [0]),
    ):
        batch = _spread(*ages, codec=codec, filler=filler)
        (answer,) = await produce(subject, ("t", 0, batch))
        assert answer.error_code == (errors.InvalidTimestamp.code if bad else 0)
        assert [each.batch_index for each in answer.record_errors] == bad
        assert all(
            "is not within" in (e.batch_index_error_message or "") for e in answer.record_errors
        )
    assert partition.log.end_offset == 3


async def test_records_of_large_batches_are_not_named():
    subject = broker()
    await create_topic(subject, timestamp_before_max_ms=1000)
    for count, named in ((1000, 999), (1001, 0)):
        (answer,) = await produce(subject, ("t", 0, _spread(0, *[2000] * (count - 1))))
        assert answer.error_code == errors.InvalidTimestamp.code
        assert len(answer.record_errors) == named


async def test_missing_timestamps_and_those_of_the_batch_are_not_judged_one_by_one():
    subject = broker()
    partition = await create_topic(subject, timestamp_before_max_ms=1000)
    (answer,) = await produce(subject, ("t", 0, _spread(0, NOW_MS + 1)))
    assert answer.error_code == 0
    plain = _spread(0, 2000)
    flagged = header.parse(plain)._replace(attributes=header.LOG_APPEND_TIME)
    sent = build.assemble(flagged, plain[header.HEADER_SIZE :])
    (answer,) = await produce(subject, ("t", 0, sent))
    assert answer.error_code == 0
    appended = await create_topic(subject, "append", log_append_time=True)
    (answer,) = await produce(subject, ("append", 0, _spread(0, 2000)))
    assert answer.error_code == 0
    assert (partition.log.end_offset, appended.log.end_offset) == (4, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "code"), [("header", 0), ("records", errors.InvalidRecord.code)]
)
async def test_setting_says_what_is_checked(tmp_path: Path, setting: str, code: int):
    async with running(tmp_path, kwire_produce_validation=setting) as server:
        await create(server, "t")
        async with await TrioWireClient.connect(*server.address) as client:
            answer = await client.call(request(("t", 0, DAMAGED)), 9)
    assert answer.responses[0].partition_responses[0].error_code == code
