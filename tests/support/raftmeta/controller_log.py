"""The metadata logs of the recorded clusters, as the active controller of an epoch wrote them."""

import gzip
import json
from base64 import b64decode
from functools import cache
from math import inf
from typing import Any, Final

import attrs

from kwire.raftmeta.metadata.image import Applied
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader, unpack
from kwire.records.header import parse
from kwire.records.iterate import records
from tests.support.raftmeta.conversations import CLUSTERS, VECTORS, Key, batches, recording

NO_OP: Final = "NoOpRecord"


@attrs.frozen
class Entry:
    """A record of the log."""

    offset: int
    epoch: int
    value: bytes
    stamp: int

    @property
    def record(self) -> Any:
        return unpack(self.value)

    @property
    def kind(self) -> str:
        return type(self.record).__name__

    @property
    def batch(self) -> CommittedBatch:
        """The record as listeners of the quorum get it."""
        return CommittedBatch(self.offset, self.offset, self.epoch, self.stamp, (self.record,))


def epoch_starts(cluster: str) -> dict[int, int]:
    """Return the first offset of each epoch's records."""
    starts: dict[int, int] = {}
    for epoch, offset in batches(cluster):
        starts[epoch] = min(offset, starts.get(epoch, offset))
    return starts


def log_of(cluster: str, epoch: int) -> list[Entry]:
    """Return the log of an epoch's leader, without no-ops.

    It includes records that the leader wrote and no later leader has.
    """
    starts = epoch_starts(cluster)
    entries = []
    for (batch_epoch, base), data in sorted(batches(cluster).items(), key=_by_offset):
        header = parse(data)
        ends = [start for later, start in starts.items() if batch_epoch < later <= epoch]
        if header.is_control or batch_epoch > epoch or base >= min(ends, default=base + 1):
            continue
        for record in records(data, 0, header):
            value = bytes(record.value or b"")
            entry = Entry(record.offset, batch_epoch, value, header.max_timestamp)
            if entry.kind != NO_OP:
                entries.append(entry)
    return entries


def _by_offset(item: tuple[tuple[int, int], bytes]) -> tuple[int, int]:
    (epoch, offset), _ = item
    return offset, epoch


def committed_end(cluster: str, epoch: int) -> float:
    """Return the offset from which on the records of an epoch were lost with it; exclusive end."""
    return min((s for e, s in epoch_starts(cluster).items() if e > epoch), default=inf)


@cache
def snapshots(cluster: str) -> dict[SnapshotId, bytes]:
    """The snapshots that were fetched from a cluster's leaders."""
    pieces: dict[SnapshotId, dict[int, bytes]] = {}
    for number in CLUSTERS[cluster]:
        for frame in recording(number).frames:
            if frame.api == "FetchSnapshot" and not frame.is_request:
                part = frame.part
                name = SnapshotId(part["snapshotId"]["endOffset"], part["snapshotId"]["epoch"])
                data = b64decode(part["unalignedRecords"])
                pieces.setdefault(name, {})[part["position"]] = data
    return {
        name: b"".join(data for _, data in sorted(chunks.items()))
        for name, chunks in pieces.items()
    }


def published_before(cluster: str, log: list[Entry], place: int) -> MetadataPublisher:
    """Return the metadata in force before the log's entry at ``place``."""
    publisher = MetadataPublisher()
    start = log[place].offset if place < len(log) else inf
    older = [name for name in snapshots(cluster) if name.end_offset <= start]
    first = 0
    if older:
        newest = max(older, key=lambda name: name.end_offset)
        publisher.on_snapshot(SnapshotReader(newest, snapshots(cluster)[newest]))
        first = newest.end_offset
    before = [entry.batch for entry in log if first <= entry.offset < start]
    if before:
        publisher.on_commit(before)
    return publisher


def applied_entry(entry: Entry) -> Applied:
    return Applied(entry.offset, entry.epoch, entry.stamp)


def began(number: str) -> float:
    """The wall clock when a scenario began: no answer was sent before its records were written."""
    return max(
        parse(frame.records).max_timestamp - frame.t
        for frame in recording(number).frames
        if frame.is_raft and frame.api == "Fetch" and not frame.is_request and frame.records
    )


@cache
def frames_of(number: str) -> dict[tuple[Key, bool], bytes]:
    """Whole frames without their size, by key and whether it is the request."""
    frames = {}
    (path,) = VECTORS.glob(f"{number}-*.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        next(lines)
        for line in lines:
            fields = json.loads(line)
            if "event" not in fields:
                key = fields["conn"], fields["header"]["correlationId"]
                frames[key, fields["dir"] == "request"] = bytes.fromhex(fields["hex"])[4:]
    return frames
