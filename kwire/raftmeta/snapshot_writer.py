"""Snapshots that this node writes of its own committed metadata.

Rule: once a snapshot is durable, the raft state machine is informed of it, and of whether the
previous snapshot may be kept beside it (:mod:`kwire.raftmeta.raft.cleaning`).
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

import trio

from kwire.clock import Clock
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.raftmeta.disk_calls import DiskCalls
from kwire.raftmeta.raft.cleaning import MetadataRetention
from kwire.raftmeta.raft.control_records import snapshot_timestamp
from kwire.raftmeta.raft.events import SnapshotTaken
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.storage.levels import NEWEST
from kwire.raftmeta.storage.records import snapshot_chunks
from kwire.raftmeta.storage.storage import MetadataStorage

SNAPSHOT_HEAD_BYTES: Final = 64 * 1024
"""More bytes than the first batch of a snapshot has."""


class SnapshotWriter:
    """The writer of one node's snapshots; ``on_taken`` receives each durable snapshot."""

    def __init__(
        self,
        state: RaftState,
        storage: MetadataStorage,
        disk: DiskCalls,
        retention: MetadataRetention,
        clock: Clock,
        wait_installed: Callable[[], Awaitable[None]],
        on_taken: Callable[[SnapshotTaken], object],
    ) -> None:
        self._state = state
        self._storage = storage
        self._disk = disk
        self._retention = retention
        self._clock = clock
        self._wait_installed = wait_installed
        self._on_taken = on_taken

    async def write(
        self,
        end_offset: int,
        epoch: int,
        contents: Iterable[Sequence[MetadataRecord]],
        last_timestamp_ms: int,
        level: int = NEWEST,
    ) -> SnapshotId:
        """Store the state after the committed records before ``end_offset`` as a snapshot."""
        snapshot = SnapshotId(end_offset, epoch)
        voters, kraft_version = self._state.history.at(end_offset)
        chunks = snapshot_chunks(
            snapshot,
            contents,
            voters=voters,
            kraft_version=kraft_version,
            last_timestamp_ms=last_timestamp_ms,
            now_ms=self._clock.now_ms(),
            level=level,
        )
        prepared = []
        for chunk in chunks:
            prepared.append(chunk)
            await trio.lowlevel.checkpoint()
        store = partial(self._storage.store_snapshot, snapshot, prepared)
        await self._disk.run(store, in_thread=self._storage.blocks)
        has_room = await self._disk.run(
            partial(self._has_room_before, snapshot), wait_ready=self._wait_installed
        )
        self._on_taken(SnapshotTaken(snapshot, alone=not has_room))
        return snapshot

    def _has_room_before(self, snapshot: SnapshotId) -> bool:
        """Return whether the previous snapshot may be kept beside this one."""
        storage = self._storage
        older = [s for s in self._state.log.snapshots if s.end_offset > 0 and s < snapshot]
        if not older:
            return True
        size_bytes = storage.log_size() + sum(map(storage.snapshot_size, (*older, snapshot)))
        head = storage.read_snapshot(older[-1], 0, SNAPSHOT_HEAD_BYTES)
        timestamp_ms = snapshot_timestamp(head)
        age_ms = self._clock.now_ms() - timestamp_ms if timestamp_ms >= 0 else 0
        return not self._retention.forbids(size_bytes, age_ms)
