"""Performs the storage half of a turn: writes in order, and the reads that stand among them.

Synchronous, so that the simulation runs the same lines as the service.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from kwire.errors import PositionOutOfRange
from kwire.raftmeta.events import (
    AppendLog,
    CleanLog,
    Committed,
    Effect,
    InstallSnapshot,
    LeaderKnown,
    LogSlice,
    Reply,
    SaveElection,
    Send,
    SnapshotLoaded,
    SnapshotRefused,
    SnapshotSlice,
    TruncateLog,
    WriteSnapshot,
)
from kwire.raftmeta.storage import Bytes, MetadataStorage

if TYPE_CHECKING:
    from kwire.codec.messages.fetch import FetchResponse
    from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse
    from kwire.raftmeta.events import RaftResponse

Outcome = Reply | Send | Committed | LeaderKnown | SnapshotLoaded | SnapshotRefused
"""What is left to do once everything is synced."""


@attrs.frozen
class Written:
    """A turn whose writes are made."""

    needs_sync: bool
    outcomes: list[Outcome]


def write(storage: MetadataStorage, effects: Iterable[Effect]) -> Written:
    """Make a turn's writes and resolve its reads; the caller syncs, then does the rest."""
    needs_sync = False
    outcomes: list[Outcome] = []
    slices: dict[LogSlice, Bytes] = {}
    for effect in effects:
        match effect:
            case AppendLog(records, base_offset):
                storage.append(records, base_offset)
                needs_sync = True
            case SaveElection(state, voters, kraft_version):
                storage.save_election(state, voters, kraft_version)
                needs_sync = True
            case TruncateLog(end_offset):
                storage.truncate(end_offset)
                slices.clear()
                needs_sync = True
            case CleanLog(start_offset):
                storage.clean(start_offset)
            case WriteSnapshot(snapshot, position, data):
                storage.write_snapshot(snapshot, position, data)
            case InstallSnapshot(snapshot):
                outcomes.append(storage.install_snapshot(snapshot))
                slices.clear()
                needs_sync = True
            case Reply(_, response):
                _fill(storage, response, slices)
                outcomes.append(effect)
            case Send() | Committed() | LeaderKnown():
                outcomes.append(effect)
            case _:  # Appended and Refused were seen by whoever fed the event
                pass
    return Written(needs_sync, outcomes)


def _fill(
    storage: MetadataStorage, response: "RaftResponse", slices: dict[LogSlice, Bytes]
) -> None:
    """Put the bytes into answers that have a place for them; ``slices`` were read before."""
    from kwire.codec.messages.fetch import FetchResponse
    from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse

    if isinstance(response, FetchResponse):
        _fill_fetch(storage, response, slices)
    elif isinstance(response, FetchSnapshotResponse):
        _fill_snapshot(storage, response)


def _fill_fetch(
    storage: MetadataStorage, response: "FetchResponse", slices: dict[LogSlice, Bytes]
) -> None:
    for topic in response.responses:
        for part in topic.partitions:
            if not isinstance(part.records, LogSlice):
                continue
            wanted = part.records
            if wanted not in slices:
                slices[wanted] = storage.read(
                    wanted.start_offset, wanted.end_offset, wanted.max_bytes
                )
            part.records = slices[wanted]


def _fill_snapshot(storage: MetadataStorage, response: "FetchSnapshotResponse") -> None:
    for topic in response.topics:
        for part in topic.partitions:
            if not isinstance(part.unaligned_records, SnapshotSlice):
                continue
            wanted = part.unaligned_records
            part.size = storage.snapshot_size(wanted.id)
            if wanted.position >= part.size:
                part.error_code = PositionOutOfRange.code
                part.unaligned_records = b""
            else:
                part.unaligned_records = storage.read_snapshot(
                    wanted.id, wanted.position, wanted.max_bytes
                )
