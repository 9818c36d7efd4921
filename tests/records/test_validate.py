"""Errors for a producer's damaged batches, compared with those of Apache Kafka."""

from collections import Counter
from typing import Any

import pytest

from kwire import errors
from kwire.errors import KafkaError
from kwire.records import build, header, iterate, validate
from kwire.records.build import New
from tests.support.records.vectors import lines

CASES = lines("corrupt_records.jsonl.gz")

STORED_INSTEAD = {
    # Only the records show these: tests/replica/test_record_checks.py has their errors.
    "codec_mismatch",
    "payload_garbage",
    "payload_cut",
    "record_len_zero",
    "record_len_negative",
    "record_len_over",
    "record_len_under",
    "record_len_pad",
    "key_len_over",
    "value_len_over",
    "headers_negative",
    "headers_over",
    "header_key_null",
    "offset_delta_gap",
    "varint_overlong",
}


def check(records: bytes, **changes: Any) -> header.BatchHeader:
    return validate.check_produced(records, **({"max_message_bytes": 1 << 20} | changes))


def outcome(records: bytes) -> tuple[header.BatchHeader | None, KafkaError | None]:
    try:
        return check(records), None
    except KafkaError as error:
        return None, error


def test_all_cases_are_present():
    print(f"corrupt_records.jsonl.gz: {len(CASES)} cases")
    assert len(CASES) == 225
    excused = Counter(case["case"] in STORED_INSTEAD for case in CASES)
    assert excused[True] == 25


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']}-{c['case']}")
def test_damaged_batch_gets_kafkas_error(case: dict[str, Any]):
    records = bytes.fromhex(case["hex"])
    expected = case["broker"]["error_code"]
    message = case["broker"]["error_message"]
    batch_header, error = outcome(records)
    if error is not None:
        assert error.code == expected, error
        if message is not None:
            assert error.text == message
        return
    assert batch_header is not None
    if case["case"] in STORED_INSTEAD:
        assert expected != 0
        return
    assert expected == 0
    stored = case["broker"].get("stored_hex")
    if stored and case["case"] != "ts_negative":
        place = header.parse(bytes.fromhex(stored))
        head = build.stamp(records, base_offset=place.base_offset, leader_epoch=place.leader_epoch)
        assert (head + records[len(head) : batch_header.size]).hex() == stored


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']}-{c['case']}")
def test_reading_a_damaged_batch_raises_only_two_errors(case: dict[str, Any]):
    """A reader of damaged bytes gets records or one of two errors (invariant 96)."""
    buf = bytes.fromhex(case["hex"])
    failed = False
    try:
        for pos, batch in iterate.batches(buf):
            if batch.magic == 2 and not header.crc_ok(buf, pos, batch):
                failed = True
            else:
                list(iterate.records(buf, pos, batch, limit=1 << 20))
    except (iterate.BadRecords, errors.CorruptMessage):
        failed = True
    if case["java_read"]["result"] == "ok" and case["case"] != "control_case":
        return
    if case["case"].startswith("legacy"):
        return
    assert failed == (case["java_read"]["result"] == "error")


GOOD = build.batch([New(b"k", b"v"), New(None, b"w")], timestamp_ms=1000)
IDEMPOTENT = build.batch(
    [New(b"k", b"v")],
    timestamp_ms=1000,
    producer_id=7,
    producer_epoch=0,
    base_sequence=0,
    transactional=True,
)
ZSTD = build.batch([New(b"k", b"v")], timestamp_ms=1000, compression=4)


@pytest.mark.parametrize(
    ("records", "changes", "expected"),
    [
        (GOOD, {}, None),
        (GOOD, {"max_message_bytes": len(GOOD)}, None),  # the limit itself is allowed
        (GOOD, {"max_message_bytes": len(GOOD) - 1}, errors.MessageTooLarge),
        (None, {}, errors.InvalidRecord),  # Kafka never answers null records
        (ZSTD, {}, None),
        (ZSTD, {"zstd_allowed": False}, errors.UnsupportedCompressionType),  # Produce before 7
        (IDEMPOTENT, {}, errors.TransactionalIdAuthorizationFailed),
        (IDEMPOTENT, {"transactional_id": "t"}, None),
        (GOOD + GOOD[:40], {}, None),  # half a batch behind a whole one is dropped
        (GOOD + bytes(12), {}, errors.CorruptMessage),  # announces a length of 0
    ],
)
def test_batch_is_checked_against_limits(
    records: bytes, changes: dict[str, Any], expected: type[KafkaError] | None
):
    if expected is None:
        assert check(records, **changes).record_count >= 1
    else:
        with pytest.raises(expected):
            check(records, **changes)


DAY = 86_400_000


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (5 * DAY, 5 * DAY, None),
        (5 * DAY - 1000, 5 * DAY + 1000, None),
        (5 * DAY, 5 * DAY + 1001, errors.InvalidTimestamp),  # too far ahead
        (5 * DAY - 1001, 5 * DAY, errors.InvalidTimestamp),  # too far behind
        (-1, -1, None),  # no timestamp: none to refuse
    ],
)
def test_timestamp_far_from_now_is_refused(
    first: int, last: int, expected: type[KafkaError] | None
):
    batch_header = header.parse(
        build.batch([New(b"k", b"", (), first), New(b"k", b"", (), last)], timestamp_ms=0)
    )
    if expected is None:
        validate.check_timestamps(batch_header, 5 * DAY, 1000, 1000)
    else:
        with pytest.raises(expected):
            validate.check_timestamps(batch_header, 5 * DAY, 1000, 1000)


@pytest.mark.parametrize(
    ("newest", "accepted"),
    [
        (5 * DAY, True),
        (5 * DAY + 1001, False),
        (5 * DAY - 1001, False),
        (1 << 50, False),
        (-1, False),
    ],
)
def test_append_time_of_a_producer_does_not_switch_off_the_limits(newest: int, accepted: bool):
    """Kafka reads the largest timestamp as that of each record, and removes the flag if it fits."""
    plain = header.parse(build.batch([New(b"k", b"", (), 5 * DAY)], timestamp_ms=0))
    flagged = plain._replace(attributes=header.LOG_APPEND_TIME, max_timestamp=newest)
    if accepted:
        validate.check_timestamps(flagged, 5 * DAY, 1000, 1000)
    else:
        with pytest.raises(errors.InvalidTimestamp):
            validate.check_timestamps(flagged, 5 * DAY, 1000, 1000)


def test_old_timestamps_are_accepted_without_a_limit():
    batch_header = header.parse(build.batch([New(b"k", b"", (), 0)], timestamp_ms=0))
    validate.check_timestamps(batch_header, 1 << 60, validate.FOREVER, 1000)


def test_error_names_the_records_that_caused_it():
    """The producer fails these records, and the others of the batch because of them."""
    alone = header.parse(build.batch([New(b"k", b"", (), 0)], timestamp_ms=0))
    with pytest.raises(errors.InvalidTimestamp) as caught:
        validate.check_timestamps(alone, 5 * DAY, 1000, 1000)
    assert [index for index, _ in caught.value.record_errors] == [0]
    assert [index for index, _ in validate.keyless([1, 4]).record_errors] == [1, 4]
