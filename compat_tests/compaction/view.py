"""A partition's directory as plain values, to compare what two cleaners made of it.

Compressed sizes, CRCs and file positions are left out: two compressors may differ. Everything else
of a batch counts, also where no consumer sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kwire.log.formats import names, txn_index
from kwire.log.formats.txn_index import AbortedTxn
from kwire.records.header import BatchHeader, crc_ok, headers
from kwire.records.iterate import records


class Entry(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


class Batch(NamedTuple):
    """A batch with its records, without length and CRC."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    delete_horizon_ms: int | None
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    entries: tuple[Entry, ...]


class View(NamedTuple):
    """The segments of a directory by base offset."""

    batches: dict[int, list[Batch]]
    aborted: dict[int, list[AbortedTxn]]
    snapshots: list[int]
    epochs: bytes
    """The leader epochs' file."""
    temporary: list[str]
    """Names of files that only an unfinished pass has."""

    def all_batches(self) -> Iterator[Batch]:
        for base_offset in sorted(self.batches):
            yield from self.batches[base_offset]


def read_directory(directory: Path) -> View:
    """Read a partition's directory; raises AssertionError at a wrong CRC or length."""
    epochs = directory / names.EPOCHS_FILE
    view = View({}, {}, [], epochs.read_bytes() if epochs.exists() else b"", [])
    for path in sorted(directory.iterdir()):
        if path.suffix == names.LOG:
            view.batches[int(path.stem)] = read_segment(path)
        elif path.suffix == names.TXN_INDEX:
            if entries := txn_index.entries(path.read_bytes()):
                view.aborted[int(path.stem)] = entries
        elif path.suffix == names.SNAPSHOT:
            view.snapshots.append(int(path.stem))
        elif path.suffix in (names.CLEANED, names.SWAP):
            view.temporary.append(path.name)
    return view


def read_segment(path: Path) -> list[Batch]:
    data = path.read_bytes()
    batches, end = [], 0
    for position, header in headers(data):
        assert crc_ok(data, position, header), f"{path.name}: wrong CRC at {position}"
        assert header.base_offset >= int(path.stem), f"{path.name}: a batch of an older segment"
        batches.append(_batch(data, position, header))
        end = position + header.size
    assert end == len(data), f"{path.name}: {len(data) - end} bytes behind the last batch"
    return batches


def _batch(data: bytes, position: int, header: BatchHeader) -> Batch:
    entries = tuple(Entry(*record) for record in records(data, position, header))
    assert len(entries) == header.record_count
    return Batch(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes,
        delete_horizon_ms=header.delete_horizon_ms,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        entries=entries,
    )


def find_differences(expected: View, actual: View) -> list[str]:
    """Return one line for each difference between two directories."""
    lines = [
        f"{field}: {getattr(expected, field)} / {getattr(actual, field)}"
        for field in ("aborted", "snapshots", "epochs", "temporary")
        if getattr(expected, field) != getattr(actual, field)
    ]
    if list(expected.batches) != list(actual.batches):
        lines.append(f"segments: {list(expected.batches)} / {list(actual.batches)}")
    ours = {batch.base_offset: batch for batch in actual.all_batches()}
    theirs = {batch.base_offset: batch for batch in expected.all_batches()}
    for base_offset in sorted({*ours, *theirs}):
        a, b = theirs.get(base_offset), ours.get(base_offset)
        if a is None or b is None:
            lines.append(f"batch {base_offset}: {a} / {b}")
            continue
        for field, x, y in zip(Batch._fields, a, b, strict=True):
            if x != y:
                lines.append(f"batch {base_offset}: {field}: {x} / {y}")
    return lines


def committed_values(view: View, end_offset: int) -> dict[bytes, bytes]:
    """Return the last value of each key that a read_committed consumer sees below an offset.

    Tombstones remove a key. Compaction must not change this, at any pass.
    """
    aborted = sorted(
        (entry for entries in view.aborted.values() for entry in entries),
        key=lambda entry: entry.first_offset,
    )
    values: dict[bytes, bytes] = {}
    for batch in view.all_batches():
        if batch.attributes & 0x20 or batch.base_offset >= end_offset:
            continue
        is_aborted = batch.attributes & 0x10 and any(
            entry.producer_id == batch.producer_id
            and entry.first_offset <= batch.last_offset < entry.last_offset
            for entry in aborted
        )
        if is_aborted:
            continue
        for entry in batch.entries:
            if entry.key is not None:
                if entry.value is None:
                    values.pop(entry.key, None)
                else:
                    values[entry.key] = entry.value
    return values
