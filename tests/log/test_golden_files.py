"""Every file of the golden directories means the same to kwire as to Kafka's own classes."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwire.drive import run_steps
from kwire.log import epochs
from kwire.log.formats import offset_index, time_index, txn_index
from kwire.log.formats.checkpoints import (
    clean_shutdown_text,
    offset_line,
    offsets_text,
    parse_clean_shutdown,
    parse_meta_properties,
    parse_partition_metadata,
    parsing_offsets,
    partition_metadata_text,
)
from kwire.log.producers import ProducerStates, read_snapshot
from kwire.records.header import crc_ok, headers
from kwire.records.iterate import records
from kwire.types import uuid_text
from tests.support.log import golden
from tests.support.log.golden import producers_of

COUNTS = {  # log, checkpoint, index, timeindex, txnindex, snapshot
    "clean": (58, 1, 40, 59, 7, 55),
    "killed": (64, 2, 193, 202, 10, 31),
    "three": (54, 3, 40, 62, 6, 58),
    "quorum": (12, 6, 17, 19, 0, 11),
}
FULL_SETS = ("clean", "killed", "three", "quorum")


def content_of(part: str, stem: str, suffix: str, root: Path) -> bytes:
    return (root / part / f"{stem}.{suffix}").read_bytes()


def describe_log(buf: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return a log file's batches as in the JSON, and the size of an incomplete last one."""
    actual, end = [], 0
    for pos, header in headers(buf):
        end = pos + header.size
        actual.append(
            {
                "position": pos,
                "size": header.size,
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "leader_epoch": header.leader_epoch,
                "magic": header.magic,
                "crc": header.crc,
                "crc_valid": crc_ok(buf, pos, header),
                "attributes": header.attributes,
                "base_timestamp_field": header.base_timestamp,
                "max_timestamp": header.max_timestamp,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "is_transactional": header.is_transactional,
                "is_control": header.is_control,
                "delete_horizon_ms": header.delete_horizon_ms,
                "records": [record_of(r) for r in records(buf, pos, header)],
            }
        )
    return actual, len(buf) - end


def record_of(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    fields["key"] = None if record.key is None else base64.b64encode(record.key).decode()
    value = record.value
    if value is not None and len(value) > 48:
        fields |= {"value_size": len(value), "value_sha256": hashlib.sha256(value).hexdigest()}
    else:
        fields["value"] = None if value is None else base64.b64encode(value).decode()
    return fields


def check_log(data: bytes, stem: str, expected: list[dict[str, Any]]) -> None:
    actual, _ = describe_log(data)
    assert len(actual) == len(expected)
    for batch, other in zip(actual, expected, strict=True):
        other_fields = {"compression", "timestamp_type", "records"}
        fields = {k: v for k, v in other.items() if k not in other_fields}
        assert {k: batch[k] for k in fields} == fields
        for record, original in zip(batch["records"], other["records"], strict=True):
            fields = {k: v for k, v in original.items() if k in record}
            assert record == fields


def used_part(data: bytes, entry_size: int) -> bytes:
    """Return the entries before the zeros of a preallocated file, which may have a million more."""
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry_size) * entry_size]


def check_index(data: bytes, stem: str, expected: list[list[int]]) -> None:
    actual = offset_index.entries(used_part(data, offset_index.ENTRY.size), int(stem))
    assert [list(e) for e in actual if e[1]] == expected  # The other entries are preallocated.


def check_time_index(data: bytes, stem: str, expected: list[list[int]]) -> None:
    actual = time_index.entries(used_part(data, time_index.ENTRY.size), int(stem))
    assert [list(e) for e in actual if e[0]] == expected


def check_txn_index(data: bytes, stem: str, expected: list[dict[str, int]]) -> None:
    assert [e._asdict() for e in txn_index.entries(data)] == [
        {k: v for k, v in e.items() if k != "version"} for e in expected
    ]
    assert txn_index.plausible(data, int(stem))
    assert b"".join(map(txn_index.pack, txn_index.entries(data))) == data


def check_snapshot(data: bytes, stem: str, expected: list[dict[str, int]]) -> None:
    actual = read_snapshot(data)
    assert producers_of(actual) == sorted(expected, key=lambda p: p["producer_id"])
    state = ProducerStates()
    run_steps(state.restoring(actual))
    assert state.freeze().to_bytes() == data


CHECKS: dict[str, Callable[[bytes, str, Any], None]] = {
    "log": check_log,
    "checkpoint": check_log,
    "index": check_index,
    "timeindex": check_time_index,
    "txnindex": check_txn_index,
    "snapshot": check_snapshot,
}


@pytest.mark.parametrize("name", FULL_SETS)
def test_files_that_kafka_wrote_have_the_same_contents(name: str, golden_directory) -> None:
    root = golden.root(name, golden_directory(name))
    counts = dict.fromkeys(CHECKS, 0)
    for part, stems in golden.expected_files(name).items():
        for stem, kinds in stems.items():
            for suffix, original in kinds.items():
                kind = suffix.removesuffix(".deleted")
                if kind in CHECKS:
                    CHECKS[kind](content_of(part, stem, suffix, root), stem, original)
                    counts[kind] += 1
    assert tuple(counts.values()) == COUNTS[name]


@pytest.mark.parametrize("name", FULL_SETS)
def test_text_files_are_written_as_by_kafka(name: str) -> None:
    counts: dict[str, int] = {}
    for path, text in golden.disk_part(name)["text"].items():
        file, data = path.rsplit("/", 1)[-1], text.encode()
        counts[file] = counts.get(file, 0) + 1
        if file == "leader-epoch-checkpoint":
            assert epochs.from_text(data).to_text() == data
        elif file.endswith("-offset-checkpoint"):
            lines = [offset_line(*line) for line in run_steps(parsing_offsets(data)).items()]
            assert offsets_text(lines) == data
        elif file == "partition.metadata":
            assert partition_metadata_text(parse_partition_metadata(data)) == data
        elif file == ".kafka_cleanshutdown":
            assert clean_shutdown_text(parse_clean_shutdown(data)) == data
        elif file == "meta.properties":
            meta = parse_meta_properties(data)
            assert meta.directory_id is not None
            for value in (meta.cluster_id, uuid_text(meta.directory_id), f"node.id={meta.node_id}"):
                assert value in text
            assert parse_meta_properties(meta.to_text()) == meta
    assert counts["partition.metadata"] > 10
