"""The records of produced batches are judged as by a real Apache Kafka broker."""

from typing import Any

import pytest

from kwire.errors import InvalidRecord, KafkaError, UnknownServerError
from kwire.records import build, compression, header, validate
from kwire.records.build import New, encode_record
from kwire.replica import unpacking
from kwire.replica.unpacking import Unpacker, correct_timestamp
from tests.support.records.vectors import lines
from tests.support.speedups.implementations import implementation

CASES = lines("corrupt_records.jsonl.gz")
INVALID_RECORD = InvalidRecord.code


@pytest.fixture(params=["c", "python"], autouse=True)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "check_records", implementation(request.param).check_records)


async def judge(records: bytes) -> header.BatchHeader:
    """Return the header that is stored, or raise the error for the producer."""
    head = validate.check_produced(records, max_message_bytes=1 << 20)
    unpacker = Unpacker()
    checked = unpacker.check_here(records, head, keys=False)
    if checked is None:
        checked = await unpacker.check_in_thread(records, head, keys=False)
    batch, head = correct_timestamp(records, head, checked.max_delta)
    assert header.parse(batch) == head
    assert header.crc_ok(batch, 0, head)
    return head


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']}-{c['case']}")
async def test_damaged_batch_gets_the_error_of_apache_kafka(case: dict[str, Any]):
    records, answer = bytes.fromhex(case["hex"]), case["broker"]
    expected = answer["error_code"]
    if case["case"] == "varint_overlong":  # Kafka fails to read it: UNKNOWN_SERVER_ERROR
        expected = INVALID_RECORD
    code, head = 0, None
    try:
        head = await judge(records)
    except KafkaError as error:
        code = error.code
    assert code == expected
    if head is not None and "stored_hex" in answer:
        stored = header.parse(bytes.fromhex(answer["stored_hex"]))
        assert head.max_timestamp == stored.max_timestamp


@pytest.mark.parametrize("codec", range(5))
async def test_compressed_damage_is_found(codec: int):
    """Kafka does not compare the lengths of compressed records with their fields; kwire does."""
    good = encode_record(0, 0, b"key", b"value")
    for payload in (good + b"\0", good[:-1], b"\x7e" + good[1:], b""):
        batch = build.of_payload(compression.compress(codec, payload), 1, 1000)
        head = header.parse(batch)
        changed = head._replace(attributes=codec)
        with pytest.raises(KafkaError):
            await judge(build.assemble(changed, batch[header.HEADER_SIZE :]))


@pytest.mark.parametrize("codec", range(1, 5))
async def test_payload_of_another_codec_does_not_decompress(codec: int):
    batch = build.batch([New(b"k", bytes(100))], timestamp_ms=1000, compression=codec % 4 + 1)
    changed = header.parse(batch)._replace(attributes=codec)
    with pytest.raises(UnknownServerError):
        await judge(build.assemble(changed, batch[header.HEADER_SIZE :]))


@pytest.mark.parametrize("codec", range(5))
async def test_large_batches_are_judged_too(codec: int):
    """A payload that is not checked on the loop."""
    records = [New(b"key", bytes(100))] * 5000
    batch = build.batch(records, timestamp_ms=1000, compression=codec)
    assert Unpacker().check_here(batch, header.parse(batch), keys=False) is None
    assert (await judge(batch)).max_timestamp == 1000
    payload = b"".join(encode_record(0, i, b"key", bytes(100)) for i in range(5000))
    damaged = payload[:-50] + b"\0"
    head = header.parse(batch)
    with pytest.raises(InvalidRecord):
        await judge(build.assemble(head, compression.compress(codec, damaged)))


@pytest.mark.parametrize(("codec", "is_refused"), [(0, False), (1, True), (4, True)])
async def test_offsets_out_of_order(codec: int, is_refused: bool):
    """Kafka stores them in an uncompressed batch, and renumbers those of a compressed one."""
    payload = encode_record(0, 1, b"k", b"v") + encode_record(0, 0, b"k", b"v")
    head = header.parse(build.batch([New(None, None)] * 2, timestamp_ms=1000))
    batch = build.assemble(head._replace(attributes=codec), compression.compress(codec, payload))
    if is_refused:
        with pytest.raises(InvalidRecord, match="not consecutive"):
            await judge(batch)
    else:
        await judge(batch)


async def test_largest_timestamp_is_that_of_a_record():
    """A producer's wrong one would mislead searches by time and retention."""
    records = [New(b"k", b"v", (), time) for time in (1000, 3000, 2000)]
    batch = build.batch(records, timestamp_ms=0)
    head = header.parse(batch)
    for wrong in (0, 2999, 1 << 50):
        lying = build.assemble(head._replace(max_timestamp=wrong), batch[header.HEADER_SIZE :])
        assert (await judge(lying)).max_timestamp == 3000
