"""The metadata log's own control records: leaders, voters, and the frame of a snapshot.

A value is a message preceded by its int16 version, which is also the message's first field.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from kwire.codec.compile import decode, encode
from kwire.codec.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VotersRecord,
)
from kwire.errors import CorruptMessage
from kwire.raftmeta.raft.voters import VoterHistory, VoterSet, from_record, to_record
from kwire.records.build import New, batch
from kwire.records.control import ControlType, control_key, parse_key
from kwire.records.header import BatchHeader, Buffer, crc_ok, headers
from kwire.records.iterate import records

ControlMessage: TypeAlias = (
    LeaderChangeMessage
    | SnapshotHeaderRecord
    | SnapshotFooterRecord
    | KRaftVersionRecord
    | VotersRecord
)

_TYPES: Final[dict[int, type[ControlMessage]]] = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
_KINDS: Final = {cls: ControlType(kind) for kind, cls in _TYPES.items()}


def leader_change(leader_id: int, voters: VoterSet, granted: frozenset[int]) -> LeaderChangeMessage:
    """Return the first record of a leader's epoch."""
    return LeaderChangeMessage(
        version=0,
        leader_id=leader_id,
        voters=[Voter(voter_id=node_id) for node_id in voters.ids],
        granting_voters=[Voter(voter_id=node_id) for node_id in sorted(granted)],
    )


def voters_records(voters: VoterSet, kraft_version: int) -> list[ControlMessage]:
    """Return the records that move the voter set into the log."""
    return [KRaftVersionRecord(version=0, k_raft_version=kraft_version), to_record(voters)]


def control_batch(
    messages: list[ControlMessage], *, base_offset: int, epoch: int, timestamp_ms: int
) -> bytes:
    """Return a single batch of control records."""
    return batch(
        [New(control_key(_KINDS[type(message)]), encode(message, 0)) for message in messages],
        timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=epoch,
        control=True,
    )


def control_records(
    buf: Buffer, pos: int, header: BatchHeader
) -> Iterator[tuple[int, ControlMessage]]:
    """Yield the offset and message of every control record of a known kind."""
    for record in records(buf, pos, header):
        key = parse_key(record.key)
        cls = _TYPES.get(key.type) if key else None
        if cls is not None and record.value is not None:
            version = int.from_bytes(record.value[:2], "big", signed=True)
            yield record.offset, decode(cls, record.value, version)


def note_voters(history: VoterHistory, buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Add the voter sets and kraft.versions in a control batch to the history."""
    for offset, message in control_records(buf, pos, header):
        if isinstance(message, VotersRecord):
            history.add(offset, from_record(message))
        elif isinstance(message, KRaftVersionRecord):
            history.add_version(offset, message.k_raft_version)


def snapshot_timestamp(data: Buffer) -> int:
    """Return the time of a snapshot's last record, read from its header; -1 if unknown."""
    for pos, header in headers(data):
        for _, message in control_records(data, pos, header):
            if isinstance(message, SnapshotHeaderRecord):
                return message.last_contained_log_timestamp
        break
    return -1


def is_whole(data: Buffer) -> bool:
    """Return whether a snapshot is undamaged: all CRCs are right, and it ends with its footer."""
    footers, end = 0, 0
    try:
        for pos, header in headers(data):
            if not crc_ok(data, pos, header):
                return False
            footers += count_footers(data, pos, header)
            end = pos + header.size
    except CorruptMessage:
        return False
    return footers == 1 and end == len(data)


def count_footers(data: Buffer, pos: int, header: BatchHeader) -> int:
    """Return the number of footers in a batch of a snapshot, which has one at its end."""
    messages = control_records(data, pos, header) if header.is_control else ()
    return sum(isinstance(message, SnapshotFooterRecord) for _, message in messages)


def snapshot_voters(data: Buffer) -> tuple[VoterSet, int]:
    """Return the voters and kraft.version of a snapshot's first batch; version 0 has no voters."""
    voters, version = VoterSet(), 0
    for pos, header in headers(data):
        if not header.is_control:
            break
        for _, message in control_records(data, pos, header):
            if isinstance(message, VotersRecord):
                voters = from_record(message)
            elif isinstance(message, KRaftVersionRecord):
                version = message.k_raft_version
    return voters, version
