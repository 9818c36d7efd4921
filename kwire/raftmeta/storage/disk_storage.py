"""A raft node's disk: the directory ``__cluster_metadata-0`` in Kafka's layout.

The log is a :class:`~kwire.log.partition_log.PartitionLog`; beside it are ``quorum-state`` and the
snapshots ``<end offset>-<epoch>.checkpoint``. Rules:

* quorum-state is replaced before the log is synced, so the log is never of a later epoch.
* A snapshot appears under its name only when complete and synced, and holds only committed records,
  so the log before it has been synced.
* After a crash between fetching a snapshot and emptying the log, the snapshot wins.
* Everything that is read during the start is synced before any message is sent, because it may have
  been only in the page cache.
* A call that failed for lack of a descriptor can be repeated, except a truncation and the
  installation of a snapshot.
* The log of a lone voter never ends before its snapshots or its synced end, and has a segment
  beside quorum-state. If that is not so, the log was lost, and nobody has a copy: it is refused,
  unless a snapshot that names other voters was replacing the log.

``synced-end-offset`` holds the end of the synced log, and its epoch, at the last start, at a clean
stop, or up to about 1000 offsets ago; it is lowered before a truncation. A crash causes no damage
below that offset or below a snapshot. Such damage is therefore refused, because a node that lost
records it acknowledged could break the majority's promises. While a fetched snapshot replaces the
log, the file is absent and nothing is refused.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from kwire.errors import CorruptMessage
from kwire.log import epochs, recovery
from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.flush import Flush
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.raftmeta.raft import quorum_state
from kwire.raftmeta.raft.control_records import is_whole, snapshot_voters
from kwire.raftmeta.raft.events import SnapshotLoaded, SnapshotRefused
from kwire.raftmeta.raft.log_state import LogState, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Recovered
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.damage import LOST_REMEDY, REMEDY, first_damaged
from kwire.raftmeta.storage.names import METADATA_DIRECTORY, checkpoint_name
from kwire.raftmeta.storage.storage import Bytes, configured_history, replay
from kwire.records.header import headers
from kwire.types import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition, uuid_text

PARTIAL: Final = ".part"
SYNCED: Final = "synced-end-offset"
_CHECKPOINT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_READ_BYTES: Final = 1 << 20
_NOTED_EVERY: Final = 1000
"""Offsets between two updates of ``synced-end-offset``; each update costs a sync."""


class DiskStorage:
    """One node's metadata directory on a :class:`~kwire.log.disk.Disk`."""

    blocks = True

    def __init__(
        self,
        disk: Disk,
        *,
        now_ms: int,
        config: LogConfig | None = None,
        lone_id: int | None = None,
    ) -> None:
        """Open the log; raise CorruptMessage if it is damaged.

        ``lone_id``: the node's id if it is configured as the only voter; a lost log is then refused
        too.
        """
        self._disk = disk
        self._lone_id = lone_id
        self._directory = METADATA_DIRECTORY
        self._election: tuple[ElectionState, bytes] | None = None
        self._flush: Flush | None = None
        self._partial: str | None = None
        self.batch_positions: dict[SnapshotId, list[int]] = {}
        disk.make_directory(self._directory)
        self._snapshots = self._find_snapshots()
        self._synced_end = _load_synced_end(disk, self._directory)
        self._log = self._open(now_ms, config or LogConfig())

    # Opening --------------------------------------------------------------------------------
    def _find_snapshots(self) -> dict[SnapshotId, str]:
        snapshots: dict[SnapshotId, str] = {}
        for entry in self._disk.entries(self._directory):
            path = f"{self._directory}/{entry.name}"
            named = _CHECKPOINT.fullmatch(entry.name)
            if named is not None:
                snapshots[SnapshotId(int(named[1]), int(named[2]))] = path
            elif entry.name.endswith((PARTIAL, ".checkpoint.deleted")):
                self._disk.remove(path)
        return snapshots

    def _open(self, now_ms: int, config: LogConfig) -> PartitionLog:
        names = [entry.name for entry in self._disk.entries(self._directory)]
        if "partition.metadata" not in names:
            text = f"version: 0\ntopic_id: {uuid_text(METADATA_TOPIC_ID)}"
            self._disk.replace(f"{self._directory}/partition.metadata", text.encode(), sync=True)
        newest = max(self._snapshots, default=SnapshotId(0, 0))
        refuses_loss = self._lone_id is not None and quorum_state.QUORUM_STATE in names
        if refuses_loss and self._synced_end is None and newest in self._snapshots:
            # A crash may have interrupted the replacement of the log by a fetched snapshot.
            content = self._disk.read(self._snapshots[newest])
            refuses_loss = not _names_others(content, self._lone_id)
        if refuses_loss and not any(map(_is_log, names)):
            raise CorruptMessage(f"the files of the metadata log are missing; {LOST_REMEDY}")
        synced_end = self._synced_end
        if synced_end is not None:
            synced_end = max(synced_end, newest.end_offset)
        try:
            log = recovery.open_log(
                self._disk,
                self._directory,
                TopicPartition(METADATA_TOPIC, 0),
                now_ms=now_ms,
                config=config,
                offsets=recovery.StoredOffsets(
                    recovery_point=newest.end_offset, synced_end=synced_end or 0
                ),
            )
        except CorruptMessage as error:
            raise CorruptMessage(f"{error}; {REMEDY}") from error
        log.writer.uses_reserve = True
        needed = max(newest.end_offset, self._synced_end or 0)
        if refuses_loss and log.end_offset < needed:
            log.segments.release()
            raise CorruptMessage(
                f"the metadata log ends at offset {log.end_offset}, but it had {needed} records; "
                f"{LOST_REMEDY}"
            )
        last_epoch = log.epochs.latest
        parted = last_epoch is not None and newest.epoch > last_epoch
        if parted or newest.end_offset > log.end_offset:
            self._check(newest)
            self._empty(log, newest.end_offset)
        elif log.segments[0].base_offset > 0:
            oldest = min((s for s in self._snapshots if s.end_offset > 0), default=None)
            if oldest is not None and oldest.end_offset > log.log_start:
                log.advance_log_start(oldest.end_offset)
        if newest.end_offset >= log.log_start:
            self._forget([s for s in self._snapshots if s.end_offset < log.log_start])
        return log

    def _check(self, snapshot: SnapshotId) -> None:
        if not is_whole(self._disk.read(self._snapshots[snapshot])):
            raise CorruptMessage(f"{checkpoint_name(snapshot)} is damaged; {REMEDY}")

    def _forget(self, snapshots: list[SnapshotId]) -> None:
        """Remove snapshots; snapshots from before the log's start would name outdated voters."""
        for snapshot in snapshots:
            self._disk.remove(self._snapshots.pop(snapshot))
            self.batch_positions.pop(snapshot, None)

    @staticmethod
    def _empty(log: PartitionLog, start_offset: int) -> None:
        """Continue with an empty log; truncations queued for the removed files no longer apply."""
        log.write_queued()
        log.truncate_fully_at(start_offset)
        log.writer.queue.queue.clear()

    def load(self, configured: VoterSet) -> Recovered:
        for snapshot in self._snapshots:
            self._check(snapshot)
        start = self._snapshots.get(SnapshotId(0, 0))
        history = configured_history(configured, self._disk.read(start) if start else b"")
        log = LogState(self._log.log_start, self._log.log_start, [], sorted(self._snapshots))
        base = next((s for s in log.snapshots if s.end_offset > 0), None)
        if base is not None:
            voters, version = snapshot_voters(self._disk.read(self._snapshots[base]))
            history.reset(base.end_offset - 1, voters, version)
        while log.end_offset < self._log.end_offset:
            data = self.read(log.end_offset, self._log.end_offset, _READ_BYTES)
            damaged = first_damaged(data, log.end_offset) if data else log.end_offset
            if damaged is not None:
                raise CorruptMessage(f"the metadata log is damaged at offset {damaged}; {REMEDY}")
            replay(log, history, data)
        self._keep_what_was_found()
        return Recovered(self._load_election(log.last_epoch), log, history)

    def _keep_what_was_found(self) -> None:
        """Sync what a killed process may have left unsynced; the next answers depend on it."""
        _write_again(self._log, self._synced_end or 0)
        self._log.flush_state.flush()
        self._disk.sync_directory(self._directory)
        self._disk.sync_directory()  # This makes the directory's own entry durable.
        self._note_synced_end(self._log.end_offset)

    def _note_synced_end(self, end_offset: int | None) -> None:
        if end_offset == self._synced_end:
            return
        if end_offset is None:
            self._disk.remove(self._path(SYNCED))
            self._disk.sync_directory(self._directory)
        else:
            epoch = self._log.epochs.at(end_offset - 1)
            noted = b"%d %d\n" % (end_offset, -1 if epoch is None else epoch)
            self._disk.replace(self._path(SYNCED), noted, sync=True)
        self._synced_end = end_offset

    def _load_election(self, last_epoch: int) -> ElectionState:
        election = ElectionState()
        with suppress(FileNotFoundError):
            election = quorum_state.decode(self._disk.read(self._path(quorum_state.QUORUM_STATE)))
        return election if election.epoch >= last_epoch else ElectionState(last_epoch)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    # The log --------------------------------------------------------------------------------
    def append(self, records: Bytes, base_offset: int) -> None:
        end_offset = self._log.end_offset
        # A retry: the first attempt appended a part, then ran out of descriptors.
        if base_offset < end_offset:
            records = _from(records, end_offset)
        assert base_offset <= end_offset, (base_offset, end_offset)
        self._log.append_follower(records)
        self._log.write_queued()

    def truncate(self, end_offset: int) -> None:
        if self._synced_end is not None and end_offset < self._synced_end:
            self._note_synced_end(end_offset)
        self._log.truncate_to(end_offset)
        self._log.write_queued()
        # Batches of an earlier epoch may follow; a power loss must not bring back later ones.
        self._log.flush_state.flush()

    def clean(self, start_offset: int) -> None:
        self._forget([s for s in list(self._snapshots) if s.end_offset < start_offset])
        self._log.advance_log_start(start_offset)
        self._log.roll(0)  # So that the next snapshot can drop everything before this one.
        behind = sum(s.base_offset <= start_offset for s in self._log.segments) - 1
        if behind == len(self._log.segments) - 1:  # A power loss must not leave no segment.
            self._disk.sync_directory(self._directory)
        for _ in range(behind):
            for path in self._log.drop_segments(1):
                self._disk.remove(path)

    def read(self, start_offset: int, end_offset: int, max_bytes: int) -> Bytes:
        region = self._log.read(start_offset, max_bytes, end_offset=end_offset)
        try:
            return region.read()
        finally:
            region.close()

    @property
    def known_synced_end(self) -> int | None:
        """The end offset below which a start refuses damage; None if unknown."""
        return self._synced_end

    def log_size(self) -> int:
        return self._log.segments.size

    # quorum-state ---------------------------------------------------------------------------
    def save_election(self, state: ElectionState, voters: VoterSet, kraft_version: int) -> None:
        self._election = (state, quorum_state.encode(state, voters, kraft_version))

    # Snapshots ------------------------------------------------------------------------------
    def write_snapshot(self, snapshot: SnapshotId, position: int, data: Bytes) -> None:
        path = self._path(checkpoint_name(snapshot)) + PARTIAL
        if position == 0 and self._partial is not None:
            self._disk.remove(self._partial)  # Its fetch was abandoned.
        self._partial = path
        file = self._disk.open(path, create=True)
        try:
            file.write([data], position)
        finally:
            file.close()

    def install_snapshot(self, snapshot: SnapshotId) -> SnapshotLoaded | SnapshotRefused:
        path = self._path(checkpoint_name(snapshot))
        if not is_whole(self._disk.read(path + PARTIAL)):
            self._disk.remove(path + PARTIAL)
            return SnapshotRefused(snapshot)
        file = self._disk.open(path + PARTIAL)
        file.sync()
        file.close()
        self._note_synced_end(None)  # The current log is abandoned.
        self._disk.rename(path + PARTIAL, path)
        self._disk.sync_directory(self._directory)
        self._empty(self._log, snapshot.end_offset)
        self._forget([s for s in list(self._snapshots) if s != snapshot])
        self._snapshots[snapshot] = path
        return SnapshotLoaded(snapshot, *snapshot_voters(self._disk.read(path)))

    def store_snapshot(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        if snapshot in self._snapshots:  # Followers may be reading it.
            return
        path = self._path(checkpoint_name(snapshot))
        self._disk.replace(path, b"".join(chunks), sync=True)
        self._snapshots[snapshot] = path

    def snapshot_size(self, snapshot: SnapshotId) -> int:
        file = self._disk.open(self._snapshots[snapshot])
        try:
            return file.size()
        finally:
            file.close()

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Bytes:
        file = self._disk.open(self._snapshots[snapshot])
        try:
            return file.read(position, max_bytes)
        finally:
            file.close()

    # Making durable -------------------------------------------------------------------------
    def start_sync(self) -> Callable[[], None] | None:
        # This may fail, in which case the vote still has to be synced.
        self._flush = self._log.flush_state.start()
        election, self._election = self._election, None
        if election is None and self._flush is None:
            return None
        return partial(self._sync, election, self._flush)

    def _sync(self, election: tuple[ElectionState, bytes] | None, flush: Flush | None) -> None:
        if election is not None:
            self._disk.replace(self._path(quorum_state.QUORUM_STATE), election[1], sync=True)
        if flush is not None:
            flush.run()
            noted = self._synced_end
            if noted is None or flush.end_offset >= noted + _NOTED_EVERY:
                self._note_synced_end(flush.end_offset)

    def end_sync(self) -> None:
        flush, self._flush = self._flush, None
        if flush is not None:
            self._log.flush_state.end(flush)

    def shed(self) -> bool:
        return self._disk.shed()

    def close(self) -> None:
        """Sync and close the log, and store its synced end, as a clean stop requires.

        The files are closed even if that fails.
        """
        try:
            self.end_sync()  # Needed if a sync has failed.
            sync = self.start_sync()
            if sync is not None:
                sync()
                self.end_sync()
            if self._synced_end is not None:
                self._note_synced_end(self._log.flush_state.recovery_point)
            self._log.finish()
        finally:
            self.end_sync()  # Unpins the files if the sync has failed.
            self._log.segments.release()


def _load_synced_end(disk: Disk, directory: str) -> int | None:
    """Return the end offset below which the log is known to be synced; None if unknown.

    Another program may have used the directory meanwhile, truncated the log below that offset
    and continued in another epoch, which it stores durably before the records. In that case the
    stored epochs take precedence.
    """
    try:
        end_offset, epoch = map(int, disk.read(f"{directory}/{SYNCED}").split())
    except (FileNotFoundError, ValueError):
        return None
    with suppress(FileNotFoundError, ValueError):
        stored_epochs = epochs.from_text(disk.read(f"{directory}/{names.EPOCHS_FILE}"))
        if stored_epochs.at(end_offset - 1) not in (None, epoch):
            return None
    return end_offset


def _write_again(log: PartitionLog, offset: int) -> None:
    """Rewrite and sync everything not known to be synced.

    The kernel reports a failed fsync only once and then considers the pages clean: another
    fsync would not write what the previous process could not make durable.
    """
    for segment in log.segments:
        batch = segment.locate(offset)
        if batch is None:
            continue
        for position in range(batch[0], segment.size, _READ_BYTES):
            size = min(_READ_BYTES, segment.size - position)
            segment.file.write([segment.file.read(position, size)], position)
        segment.file.sync()


def _names_others(snapshot: Bytes, lone_id: int | None) -> bool:
    """Return whether a snapshot has other voters than a node that is configured alone.

    It may have been given other voters since, or have joined one.
    """
    return is_whole(snapshot) and snapshot_voters(snapshot)[0].ids not in ((), (lone_id,))


def _is_log(name: str) -> bool:
    return name.endswith(names.LOG) and names.stem_offset(name) is not None


def _from(records: Bytes, offset: int) -> Bytes:
    """Return the batches from ``offset`` onwards; one must begin there."""
    for pos, header in headers(records):
        if header.base_offset >= offset:
            return memoryview(records)[pos:]
    return b""
