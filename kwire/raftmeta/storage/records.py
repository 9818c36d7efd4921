"""Converts metadata records to bytes and back, and builds and reads the content of snapshots.

A value consists of an unsigned varint frame version (1), the record type, the version and the body;
the key is null. The version written depends on the finalized level
(:mod:`kwire.raftmeta.storage.levels`). A damaged record is rejected, so that no node continues with
metadata that differs from what was committed.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, get_args

import attrs

from kwire.codec.compile import Decoder, Part, decoder, encoder
from kwire.codec.messages.control_records import SnapshotFooterRecord, SnapshotHeaderRecord
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.codec.schema import spec_of
from kwire.errors import CorruptMessage
from kwire.raftmeta.raft.control_records import (
    ControlMessage,
    control_batch,
    is_whole,
    voters_records,
)
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.levels import NEWEST, at_level, version_at
from kwire.records.build import New, batch
from kwire.records.header import BatchHeader, Buffer, crc_ok, headers
from kwire.records.iterate import records

FRAME_VERSION: Final = 1
SNAPSHOT_BATCH_RECORDS: Final = 500


class UnknownRecord(ValueError):
    """A metadata record that this node cannot read, and must not ignore."""


class CommittedBatch(NamedTuple):
    """A batch of the log in the form that listeners receive; control batches have no records."""

    base_offset: int
    last_offset: int
    epoch: int
    timestamp_ms: int
    records: tuple[MetadataRecord, ...]
    size_bytes: int = 0
    """The size of the batch in the log, in bytes."""

    @property
    def end_offset(self) -> int:
        return self.last_offset + 1


@cache
def _classes() -> dict[int | None, type[MetadataRecord]]:
    """Return the record classes by record type."""
    return {spec_of(cls).record_type: cls for cls in get_args(MetadataRecord)}


def pack(record: MetadataRecord, level: int = NEWEST) -> bytes:
    """Return a record's value at a metadata.version level that has all of its fields."""
    spec = spec_of(type(record))
    assert spec.record_type is not None
    version = version_at(record, level)
    parts: list[Part] = [bytes(_uvarints(FRAME_VERSION, spec.record_type, version))]
    encoder(type(record), version)(record, parts)
    return b"".join(parts)


def unpack(value: bytes | None) -> MetadataRecord:
    """Return the metadata record in a value; raise UnknownRecord if it cannot be read."""
    try:
        if value is None:
            raise UnknownRecord("a metadata record without a value")
        frame, pos = _uvarint(value, 0)
        kind, pos = _uvarint(value, pos)
        version, pos = _uvarint(value, pos)
    except IndexError as error:
        raise UnknownRecord(f"not a metadata record: {value!r:.80}") from error
    cls = _classes().get(kind)
    if frame != FRAME_VERSION or cls is None or version not in spec_of(cls).versions:
        raise UnknownRecord(f"metadata record frame {frame} type {kind} version {version}")
    decode: Decoder[MetadataRecord] = decoder(cls, version)
    return decode(value, pos)[0]


def _uvarints(*numbers: int) -> Iterator[int]:
    for number in numbers:
        while number > 0x7F:
            yield number & 0x7F | 0x80
            number >>= 7
        yield number


def _uvarint(data: bytes, pos: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, pos
        shift += 7
        if shift > 28:
            raise UnknownRecord("a number in a metadata record's frame is too long")


def read_batches(data: Buffer) -> Iterator[CommittedBatch]:
    """Decode the batches in a piece of the log; raise CorruptMessage if one is damaged."""
    for pos, header in headers(data):
        yield committed_batch(header, unpack_batch(data, pos, header))


def unpack_batch(data: Buffer, pos: int, header: BatchHeader) -> Iterator[MetadataRecord]:
    """Decode one batch's records, none for a control batch; CorruptMessage if damaged."""
    if not crc_ok(data, pos, header):
        raise CorruptMessage(f"the metadata records at {header.base_offset} are damaged")
    if not header.is_control:
        yield from (unpack(record.value) for record in records(data, pos, header))


def committed_batch(header: BatchHeader, contents: Iterable[MetadataRecord]) -> CommittedBatch:
    """Return a batch with the given records in the form that listeners receive."""
    return CommittedBatch(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        epoch=header.leader_epoch,
        timestamp_ms=header.max_timestamp,
        records=tuple(contents),
        size_bytes=header.size,
    )


def snapshot_chunks(
    snapshot: SnapshotId,
    contents: Iterable[Sequence[MetadataRecord]],
    *,
    voters: VoterSet,
    kraft_version: int,
    last_timestamp_ms: int,
    now_ms: int,
    level: int = NEWEST,
) -> Iterator[bytes]:
    """Yield a snapshot's batches: header, the records in the given order, footer.

    Offsets inside a snapshot count from 0 and have no meaning outside.
    """
    epoch = snapshot.epoch
    first: list[ControlMessage] = [
        SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last_timestamp_ms)
    ]
    if kraft_version:
        first += voters_records(voters, kraft_version)
    yield control_batch(first, base_offset=0, epoch=epoch, timestamp_ms=now_ms)
    offset = len(first)
    for group in contents:
        for start in range(0, len(group), SNAPSHOT_BATCH_RECORDS):
            part = at_level(group[start : start + SNAPSHOT_BATCH_RECORDS], level)
            packed = [New(None, pack(record, level)) for record in part]
            yield batch(packed, base_offset=offset, leader_epoch=epoch, timestamp_ms=now_ms)
            offset += len(packed)
    footer: list[ControlMessage] = [SnapshotFooterRecord(version=0)]
    yield control_batch(footer, base_offset=offset, epoch=epoch, timestamp_ms=now_ms)


@attrs.frozen(eq=False, repr=False)
class SnapshotReader:
    """A snapshot that a listener can load."""

    id: SnapshotId
    data: bytes = attrs.field(repr=False)
    decoded: tuple[CommittedBatch, ...] | None = attrs.field(default=None, repr=False)

    def batches(self) -> Iterator[CommittedBatch]:
        """Decode its batches, whose offsets are meaningless; CorruptMessage if it is damaged."""
        if self.decoded is not None:
            return iter(self.decoded)
        self.check()
        return read_batches(self.data)

    def check(self) -> None:
        if not is_whole(self.data):
            raise CorruptMessage(f"snapshot {self.id.end_offset}-{self.id.epoch} is incomplete")

    def records(self) -> Iterator[MetadataRecord]:
        for part in self.batches():
            yield from part.records
