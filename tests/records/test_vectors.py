"""Every batch of records.jsonl.gz is read as its line says; uncompressed ones are rebuilt."""

from typing import Any

import pytest

from kwire.records import build, compression, control, header, iterate
from tests.support.records.vectors import lines, raw

VECTORS = lines("records.jsonl.gz")


def test_all_vectors_are_present():
    print(f"records.jsonl.gz: {len(VECTORS)} buffers")
    assert len(VECTORS) == 151


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_batches_and_records_are_read_as_kafkas(vector: dict[str, Any]):
    buf = bytes.fromhex(vector["hex"])
    batches = list(iterate.batches(buf))
    expanded = [(pos, batch, list(iterate.records(buf, pos, batch))) for pos, batch in batches]
    assert len(expanded) == len(vector["batches"])
    for (pos, batch, records), expected in zip(expanded, vector["batches"], strict=True):
        check_batch(buf, pos, batch, expected)
        check_records(records, expected)
    read = sum(batch.size for _, batch in batches)
    assert len(buf) - read == vector["trailing_partial_bytes"]


def check_batch(buf: bytes, pos: int, batch: header.BatchHeader, expected: dict[str, Any]):
    assert batch.magic == expected["magic"]
    assert batch.size == expected["size_in_bytes"]
    assert batch.base_offset == expected["base_offset"]
    assert batch.last_offset == expected["last_offset"]
    assert batch.crc == expected["crc"]
    assert compression.NAMES[batch.compression] == expected["compression"]
    assert batch.max_timestamp == expected["max_timestamp"]
    assert batch.is_log_append_time == (expected["timestamp_type"] == "LogAppendTime")
    if batch.magic != 2:
        assert expected["crc_valid"]
        return
    assert header.crc_ok(buf, pos, batch) == expected["crc_valid"]
    for name, value in {
        "batch_length": batch.length,
        "partition_leader_epoch": batch.leader_epoch,
        "attributes": batch.attributes,
        "last_offset_delta": batch.last_offset_delta,
        "base_timestamp_field": batch.base_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
        "delete_horizon_ms": batch.delete_horizon_ms,
        "records_count": batch.record_count,
    }.items():
        assert value == expected[name], name


def check_records(records: list[iterate.Record], expected: dict[str, Any]):
    assert [
        (
            r.offset,
            r.timestamp,
            r.key,
            r.value,
            [(k.decode(), v) for k, v in r.headers],
        )
        for r in records
    ] == [
        (
            s["offset"],
            s["timestamp"],
            raw(s["key"]),
            raw(s["value"]),
            [(h["key"], raw(h["value"])) for h in s.get("headers", ())],
        )
        for s in expected["records"]
    ]
    if expected["magic"] == 2:
        assert [r.sequence for r in records] == [s["sequence"] for s in expected["records"]]
    for record, s in zip(records, expected["records"], strict=True):
        if "control" in s:
            check_control(record, s["control"])


CONTROL_NAMES = {kind.name: kind for kind in control.ControlType}


def check_control(record: iterate.Record, expected: dict[str, Any]):
    key = control.parse_key(record.key)
    assert key is not None
    assert control.ControlType(key.type).name == expected["type"]
    if "coordinator_epoch" in expected:
        assert control.parse_end_txn(record.value) == expected["coordinator_epoch"]


def plain_batches() -> list[Any]:
    return [
        pytest.param(vector, id=vector["id"])
        for vector in VECTORS
        if vector["batches"]
        and all(b["magic"] == 2 and b["compression"] == "none" for b in vector["batches"])
    ]


@pytest.mark.parametrize("vector", plain_batches())
def test_uncompressed_batch_is_rebuilt_byte_for_byte(vector: dict[str, Any]):
    buf = bytes.fromhex(vector["hex"])
    rebuilt = b""
    for pos, batch in header.headers(buf):
        payload = b"".join(
            build.encode_record(
                # With append time, iterate hides the record's own timestamp delta.
                own_delta(buf, pos, batch, n),
                r.offset - batch.base_offset,
                r.key,
                r.value,
                r.headers,
            )
            for n, r in enumerate(iterate.records(buf, pos, batch))
        )
        rebuilt += build.rebuild(
            batch,
            payload,
            batch.record_count,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            has_delete_horizon=batch.delete_horizon_ms is not None,
        )
    assert rebuilt == buf[: len(buf) - vector["trailing_partial_bytes"]]


def own_delta(buf: bytes, pos: int, batch: header.BatchHeader, index: int) -> int:
    """Return the timestamp delta of a record, also where the append time replaces it."""
    plain = batch._replace(attributes=batch.attributes & ~header.LOG_APPEND_TIME)
    return list(iterate.records(buf, pos, plain))[index].timestamp - batch.base_timestamp


def test_many_vectors_are_rebuilt():
    assert len(plain_batches()) > 35


def test_transaction_markers_are_kafkas():
    """A marker is built from its fields, not copied from the vector."""
    marker_count = 0
    for vector in VECTORS:
        kind, _, rest = vector["id"].removeprefix("v2-").partition("-")
        if kind not in ("commit", "abort"):
            continue
        buf = bytes.fromhex(vector["hex"])
        head = header.parse(buf)
        assert buf == control.end_txn_marker(
            commit=kind == "commit",
            coordinator_epoch=int(rest.partition("-")[0]),
            producer_id=head.producer_id,
            producer_epoch=head.producer_epoch,
            timestamp_ms=head.max_timestamp,
            base_offset=head.base_offset,
            leader_epoch=head.leader_epoch,
        )
        marker_count += 1
    assert marker_count == 6
