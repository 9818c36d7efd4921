"""Performs the storage half of a turn: the writes in order, and the reads between them.

Synchronous, so that the simulation runs the same code as the service.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kwire.errors import PositionOutOfRange
from kwire.raftmeta.raft.events import (
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
from kwire.raftmeta.storage import damage
from kwire.raftmeta.storage.storage import Bytes, MetadataStorage

if TYPE_CHECKING:
    from kwire.codec.messages.fetch import FetchResponse
    from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse
    from kwire.raftmeta.raft.events import RaftResponse

Outcome = Reply | Send | Committed | LeaderKnown | SnapshotLoaded | SnapshotRefused
"""The effects that remain to be performed once everything is synced."""


class Written(NamedTuple):
    """The result of a turn's writes."""

    needs_sync: bool
    outcomes: list[Outcome]


def write(storage: MetadataStorage, effects: Iterable[Effect]) -> Written:
    """Perform a turn's writes and reads; the caller then syncs, and performs the other effects."""
    turn = Turn(effects)
    while (written := turn.write(storage)) is None:
        pass
    return written


class Turn:
    """The writes of a turn, while in progress.

    A failed write can be repeated, together with those after it, if ``can_go_on`` is true; those
    before it are not repeated. A log that was only partly truncated, or partly abandoned for a
    snapshot, must not be used again.
    """

    def __init__(self, effects: Iterable[Effect]) -> None:
        self._effects = deque(effects)
        self._needs_sync = False
        self._outcomes: list[Outcome] = []
        self._slices: dict[LogSlice, Bytes] = {}

    @property
    def can_go_on(self) -> bool:
        """True if the next write, which may have been attempted, can be repeated."""
        return not isinstance(self._effects[0], TruncateLog | InstallSnapshot)

    def write(self, storage: MetadataStorage) -> Written | None:
        """Perform the remaining writes; after an exception, the failed write is next.

        Return None after a piece of a snapshot was read, if writes remain: many brokers may fetch
        it at once.
        """
        has_read = False
        while self._effects and not has_read:
            has_read = self._perform(storage, self._effects[0])
            self._effects.popleft()
        return None if self._effects else Written(self._needs_sync, self._outcomes)

    def _perform(self, storage: MetadataStorage, effect: Effect) -> bool:
        """Perform one effect; return whether a piece of a snapshot was read for it."""
        match effect:
            case AppendLog(records, base_offset):
                storage.append(records, base_offset)
                self._needs_sync = True
            case SaveElection(state, voters, kraft_version):
                storage.save_election(state, voters, kraft_version)
                self._needs_sync = True
            case TruncateLog(end_offset):
                storage.truncate(end_offset)
                self._slices.clear()
                self._needs_sync = True
            case CleanLog(start_offset):
                storage.clean(start_offset)
            case WriteSnapshot(snapshot, position, data):
                storage.write_snapshot(snapshot, position, data)
            case InstallSnapshot(snapshot):
                self._outcomes.append(storage.install_snapshot(snapshot))
                self._slices.clear()
                self._needs_sync = True
            case Reply(_, response):
                has_read = _fill(storage, response, self._slices)
                self._outcomes.append(effect)
                return has_read
            case Send() | Committed() | LeaderKnown():
                self._outcomes.append(effect)
            case _:  # Appended and Refused were returned to the event's sender.
                pass
        return False


def _fill(
    storage: MetadataStorage, response: "RaftResponse", slices: dict[LogSlice, Bytes]
) -> bool:
    """Fill in an answer's bytes if it needs any; ``slices`` caches the bytes of the log.

    Return whether a piece of a snapshot was read.
    """
    from kwire.codec.messages.fetch import FetchResponse
    from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse

    if isinstance(response, FetchResponse):
        _fill_fetch(storage, response, slices)
    elif isinstance(response, FetchSnapshotResponse):
        return _fill_snapshot(storage, response)
    return False


def _fill_fetch(
    storage: MetadataStorage, response: "FetchResponse", slices: dict[LogSlice, Bytes]
) -> None:
    for topic in response.responses:
        for part in topic.partitions:
            if not isinstance(part.records, LogSlice):
                continue
            log_slice = part.records
            if log_slice not in slices:
                data = storage.read(
                    log_slice.start_offset, log_slice.end_offset, log_slice.max_bytes
                )
                damage.check_log(data, log_slice.start_offset)
                slices[log_slice] = data
            part.records = slices[log_slice]


def _fill_snapshot(storage: MetadataStorage, response: "FetchSnapshotResponse") -> bool:
    # Not imported at the start of a single node.
    from kwire.raftmeta.storage.snapshot_pieces import read_piece

    has_read = False
    for topic in response.topics:
        for part in topic.partitions:
            if not isinstance(part.unaligned_records, SnapshotSlice):
                continue
            snapshot_slice = part.unaligned_records
            part.size = storage.snapshot_size(snapshot_slice.id)
            if not part.size:
                raise damage.of_snapshot(snapshot_slice.id)
            if snapshot_slice.position >= part.size:
                part.error_code = PositionOutOfRange.code
                part.unaligned_records = b""
            else:
                part.unaligned_records = read_piece(storage, snapshot_slice, part.size)
                has_read = True
    return has_read
