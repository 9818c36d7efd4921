"""Delivery of committed metadata to this node's listeners.

Rules: listeners receive committed batches, snapshots and leadership changes in log order, and this
node's own leadership only after everything before it. Delivery never delays consensus: it reads the
log in its own task, and not while a snapshot replaces the log.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.disk_health import lacks_descriptors
from kwire.raftmeta.commits import PendingCommits
from kwire.raftmeta.disk_calls import DiskCalls
from kwire.raftmeta.raft.events import Committed, LeaderKnown, SnapshotLoaded
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.storage.damage import check_log, check_snapshot
from kwire.raftmeta.storage.decoding import decode_batches, decode_snapshot
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.raftmeta.storage.storage import MetadataStorage
from kwire.waits import OffsetWaits, Signal

logger = logging.getLogger(__name__)

DELIVERY_BYTES: Final = 64 * 1024
"""Bytes of the log to decode before other tasks get a turn."""


class LeaderAndEpoch(NamedTuple):
    """The leader; ``is_active``: the leader is this node, and it has read the whole log."""

    leader_id: int | None
    epoch: int
    is_active: bool = False


class RecordListener(Protocol):
    """A receiver of committed metadata.

    Calls must be short. For longer work, return an awaitable; the next delivery waits for it.
    """

    def on_commit(self, batches: Sequence[CommittedBatch]) -> Awaitable[None] | None: ...

    def on_snapshot(self, reader: SnapshotReader) -> Awaitable[None] | None: ...


class LeadershipListener(Protocol):
    """A receiver of leadership changes; calls must be short."""

    def on_leadership(self, leader: LeaderAndEpoch) -> None: ...


class Delivery:
    """The listeners, what they have received, and the queue of outcomes still to deliver."""

    def __init__(
        self,
        state: RaftState,
        storage: MetadataStorage,
        disk: DiskCalls,
        commits: PendingCommits,
        clock: Clock,
        wait_installed: Callable[[], Awaitable[None]],
    ) -> None:
        self._state = state
        self._storage = storage
        self._disk = disk
        self._commits = commits
        self._clock = clock
        self._wait_installed = wait_installed
        self.record_listeners: list[RecordListener] = []
        """Must be complete before ``run``: listeners get everything from the newest snapshot on."""
        self.leadership_listeners: list[LeadershipListener] = []
        """Notified of a leader once the record listeners have received everything before that."""
        self.leader = LeaderAndEpoch(None, 0)
        """The leader that was announced last."""
        self.end_offset = 0
        """The offset after the last record that the listeners have received."""
        self._queue: deque[Committed | LeaderKnown | SnapshotLoaded] = deque()
        self._queued = Signal()
        self._delivered_waits = OffsetWaits()

    def put(self, item: Committed | LeaderKnown | SnapshotLoaded) -> None:
        """Queue an outcome of the raft state machine for the listeners."""
        self._queue.append(item)
        self._queued.notify()

    async def wait_delivered(self, end_offset: int) -> None:
        """Wait until the listeners have received everything before ``end_offset``."""
        if self.end_offset < end_offset:
            await self._delivered_waits.wait(end_offset)

    async def deliver_initial_snapshot(self) -> None:
        """Deliver the latest snapshot on this node's disk, if there is one."""
        newest = self._state.log.latest_snapshot
        if newest is not None and newest.end_offset > 0:
            await self._deliver_snapshot(newest)

    async def run(self) -> None:
        """Deliver queued outcomes until cancelled."""
        while True:
            while self._queue:
                await self._wait_installed()
                item = self._queue.popleft()
                match item:
                    case Committed(end_offset):
                        await self._deliver_log(end_offset)
                    case LeaderKnown(leader_id, epoch, active):
                        self._deliver_leader(LeaderAndEpoch(leader_id, epoch, active))
                    case SnapshotLoaded(snapshot):
                        await self._deliver_snapshot(snapshot)
            await self._queued.wait()

    async def _deliver_log(self, end_offset: int) -> None:
        """Deliver committed records up to ``end_offset`` in pieces; other tasks run in between."""
        attempt = 0
        while self.end_offset < end_offset:
            await self._wait_installed()
            if self.end_offset < self._state.log.start_offset:
                return  # A later snapshot in the queue covers this one.
            try:
                data = self._storage.read(self.end_offset, end_offset, DELIVERY_BYTES)
            except (OSError, KafkaStorageError) as error:
                if not lacks_descriptors(error):
                    raise
                await self._disk.wait_descriptors(error, attempt)
                attempt += 1
                continue  # A snapshot may have replaced the log meanwhile.
            attempt = 0
            check_log(data, self.end_offset)
            batches = await decode_batches(data, Slices(self._clock.now))
            batches = [b for b in batches if b.last_offset >= self.end_offset]
            assert batches, (self.end_offset, end_offset)
            for listener in self.record_listeners:
                if (rest := listener.on_commit(batches)) is not None:
                    await rest
            self._on_delivered(batches[-1].end_offset)
            if self.end_offset < end_offset:
                await trio.lowlevel.checkpoint()

    async def _deliver_snapshot(self, snapshot: SnapshotId) -> None:
        """Deliver a snapshot, unless a later snapshot in the queue has replaced it."""
        data = await self._read_snapshot(snapshot)
        if data is None:
            return
        reader = await decode_snapshot(SnapshotReader(snapshot, data), Slices(self._clock.now))
        for listener in self.record_listeners:
            if (rest := listener.on_snapshot(reader)) is not None:
                await rest
        self._on_delivered(snapshot.end_offset)

    async def _read_snapshot(self, snapshot: SnapshotId) -> bytes | None:
        """Return a snapshot's bytes, checked; None if it has been replaced."""

        def read() -> bytes:
            size = self._storage.snapshot_size(snapshot)
            data = bytes(self._storage.read_snapshot(snapshot, 0, size))
            check_snapshot(snapshot, data)
            return data

        try:
            return await self._disk.run(read, in_thread=self._storage.blocks)
        except (KeyError, FileNotFoundError):
            await self._wait_installed()
            if snapshot in self._state.log.snapshots:
                raise
            return None

    def _deliver_leader(self, leader: LeaderAndEpoch) -> None:
        if (leader.leader_id, leader.epoch) != (self.leader.leader_id, self.leader.epoch):
            if leader.leader_id is None:
                logger.info("quorum has no leader epoch=%d", leader.epoch)
            else:
                logger.info("quorum has a leader id=%d epoch=%d", leader.leader_id, leader.epoch)
        self.leader = leader
        is_own = leader.leader_id == self._state.config.node_id
        self._commits.fail_unless(leader.epoch if is_own else None)
        for listener in self.leadership_listeners:
            listener.on_leadership(leader)

    def _on_delivered(self, end_offset: int) -> None:
        self.end_offset = max(self.end_offset, end_offset)
        self._commits.complete_before(end_offset)
        self._delivered_waits.reach(end_offset)
