"""Every batch of records.jsonl.gz is read as stated; the uncompressed ones are built again."""

from typing import Any

import pytest

from kwire.records import build, compression, control, header, iterate
from kwire.records.build import New
from tests.support.records.vectors import lines, raw

VECTORS = lines("records.jsonl.gz")


def test_all_vectors_are_here():
    print(f"records.jsonl.gz: {len(VECTORS)} buffers")
    assert len(VECTORS) == 151


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_reads_as_stated(vector: dict[str, Any]):
    buf = bytes.fromhex(vector["hex"])
    found = list(iterate.batches(buf))
    expanded = [(pos, batch, list(iterate.records(buf, pos, batch))) for pos, batch in found]
    assert len(expanded) == len(vector["batches"])
    for (pos, batch, records), stated in zip(expanded, vector["batches"], strict=True):
        check_batch(buf, pos, batch, stated)
        check_records(records, stated)
    read = sum(batch.size for _, batch in found)
    assert len(buf) - read == vector["trailing_partial_bytes"]


def check_batch(buf: bytes, pos: int, batch: header.BatchHeader, stated: dict[str, Any]):
    assert batch.magic == stated["magic"]
    assert batch.size == stated["size_in_bytes"]
    assert batch.base_offset == stated["base_offset"]
    assert batch.last_offset == stated["last_offset"]
    assert batch.crc == stated["crc"]
    assert compression.NAMES[batch.compression] == stated["compression"]
    assert batch.max_timestamp == stated["max_timestamp"]
    assert batch.is_log_append_time == (stated["timestamp_type"] == "LogAppendTime")
    if batch.magic != 2:
        assert stated["crc_valid"]
        return
    assert header.crc_ok(buf, pos, batch) == stated["crc_valid"]
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
        assert value == stated[name], name


def check_records(records: list[iterate.Record], stated: dict[str, Any]):
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
        for s in stated["records"]
    ]
    if stated["magic"] == 2:
        assert [r.sequence for r in records] == [s["sequence"] for s in stated["records"]]
    for record, s in zip(records, stated["records"], strict=True):
        if "control" in s:
            check_control(record, s["control"])


CONTROL_NAMES = {kind.name: kind for kind in control.ControlType}


def check_control(record: iterate.Record, stated: dict[str, Any]):
    key = control.parse_key(record.key)
    assert key is not None
    assert control.ControlType(key.type).name == stated["type"]
    if "coordinator_epoch" in stated:
        assert control.parse_end_txn(record.value) == stated["coordinator_epoch"]


def plain_batches() -> list[Any]:
    return [
        pytest.param(vector, id=vector["id"])
        for vector in VECTORS
        if vector["batches"]
        and all(b["magic"] == 2 and b["compression"] == "none" for b in vector["batches"])
    ]


@pytest.mark.parametrize("vector", plain_batches())
def test_rebuilt_byte_for_byte(vector: dict[str, Any]):
    buf = bytes.fromhex(vector["hex"])
    again = b""
    for pos, batch in header.headers(buf):
        kept = [
            (
                r.offset,
                # In an append-time batch the record's own delta is hidden: it is zero to the base.
                batch.base_timestamp + own_delta(buf, pos, batch, n),
                New(r.key, r.value, r.headers),
            )
            for n, r in enumerate(iterate.records(buf, pos, batch))
        ]
        again += build.rebuild(batch, kept)
    assert again == buf[: len(buf) - vector["trailing_partial_bytes"]]


def own_delta(buf: bytes, pos: int, batch: header.BatchHeader, index: int) -> int:
    """The delta a record carries, whatever the batch makes of it."""
    plain = batch._replace(attributes=batch.attributes & ~header.LOG_APPEND_TIME)
    return list(iterate.records(buf, pos, plain))[index].timestamp - batch.base_timestamp


def test_rebuilt_count():
    assert len(plain_batches()) > 35


def test_markers_are_kafkas():
    """A marker is built from its parts alone, not copied from what was read."""
    seen = 0
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
        seen += 1
    assert seen == 6
