"""The metadata quorum's interface to the broker: runs :class:`Raft` on a disk and a network.

* ``append`` writes records if this node leads; its :class:`Commit` is done when they are
  committed *and* the listeners have received them.
* Listeners receive committed batches, snapshots and leadership in the order of the log; this
  node's own leadership only after everything before it.
* One turn at a time (:mod:`kwire.drive`): write, one fsync, then messages, answers, commits.
  Sending never waits for a peer, and delivery to listeners never delays consensus.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import attrs
import trio

from kwire import errors
from kwire.clock import Clock
from kwire.drive import Driver, Slices
from kwire.errors import KafkaError, KafkaStorageError
from kwire.log.trouble import lacks_descriptors
from kwire.raftmeta.raft.cleaning import MetadataRetention
from kwire.raftmeta.raft.control_records import snapshot_timestamp
from kwire.raftmeta.raft.events import (
    Answered,
    Append,
    Appended,
    Committed,
    Effect,
    Event,
    InstallSnapshot,
    LeaderKnown,
    Received,
    Refused,
    Reply,
    Resign,
    Send,
    Shutdown,
    SnapshotLoaded,
    SnapshotRefused,
    SnapshotTaken,
    Started,
    UpgradeKraftVersion,
)
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Follower, Leader, Resigned
from kwire.raftmeta.raft.state import RaftConfig, RaftState, Random
from kwire.raftmeta.raft.voters import Node, VoterSet
from kwire.raftmeta.storage.damage import check_log, check_snapshot
from kwire.raftmeta.storage.decoding import decode_batches, decode_snapshot
from kwire.raftmeta.storage.levels import NEWEST
from kwire.raftmeta.storage.records import (
    CommittedBatch,
    Record,
    SnapshotReader,
    pack,
    snapshot_chunks,
)
from kwire.raftmeta.storage.scarcity import Scarcity
from kwire.raftmeta.storage.storage import MetadataStorage
from kwire.raftmeta.storage.storage_turn import Outcome, Turn, Written
from kwire.records.build import Payload

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import OwnRequest, RaftRequest, RaftResponse

logger = logging.getLogger(__name__)

T = TypeVar("T")

BACKLOG_MAX: Final = 10_000
"""Effects waiting for a turn, above which appends have to wait."""
DELIVERY_BYTES: Final = 64 * 1024
"""Bytes of the log that are decoded before other tasks get a turn."""
SNAPSHOT_HEAD_BYTES: Final = 64 * 1024
"""More than the first batch of a snapshot."""
SHUTDOWN_SECONDS: Final = 1.0
"""Seconds that a stopping leader waits for the others to elect another."""


@attrs.frozen
class LeaderAndEpoch:
    """The leader; ``is_active`` if it is this node and it has caught up with the log."""

    leader_id: int | None
    epoch: int
    is_active: bool = False


class Listener(Protocol):
    """A receiver of committed metadata.

    Calls are short. Longer work is returned as an awaitable: the next delivery waits for it.
    """

    def on_commit(self, batches: Sequence[CommittedBatch]) -> Awaitable[None] | None: ...

    def on_snapshot(self, reader: SnapshotReader) -> Awaitable[None] | None: ...

    def on_leadership(self, leader: LeaderAndEpoch) -> None: ...


class Peers(Protocol):
    """The network to other nodes: None when there is no answer, ConnectionRefusedError when
    no process listens there."""

    async def call(self, node: Node, request: OwnRequest) -> RaftResponse | None: ...


class NoPeers:
    """The network of a quorum of one."""

    async def call(self, node: Node, request: OwnRequest) -> RaftResponse | None:
        return None


@attrs.define(eq=False)
class Commit:
    """Appended records; ``offset`` is the last one's, ``base_offset`` the first one's."""

    base_offset: int
    offset: int
    epoch: int
    _event: trio.Event = attrs.field(factory=trio.Event)
    _error: KafkaError | None = None

    async def wait(self) -> None:
        """Wait for the commit and its delivery to listeners; NotController if it is uncertain."""
        await self._event.wait()
        if self._error is not None:
            raise self._error

    def _finish(self, error: KafkaError | None = None) -> None:
        self._error = error
        self._event.set()


@attrs.define(eq=False)
class _Pending:
    """A request whose sender waits for the answer."""

    event: trio.Event = attrs.field(factory=trio.Event)
    response: RaftResponse | None = None


class RaftService:
    """This node's part in the metadata quorum."""

    def __init__(
        self,
        config: RaftConfig,
        storage: MetadataStorage,
        *,
        clock: Clock,
        random: Random,
        configured: VoterSet | None = None,
        peers: Peers | None = None,
        retention: MetadataRetention | None = None,
    ) -> None:
        self._storage = storage
        self._retention = retention or MetadataRetention()
        self._peers = peers or NoPeers()
        self._clock = clock
        self._raft = Raft(config, storage.load(configured or VoterSet()), random)
        self._driver: Driver[Event, Effect] = Driver(self._raft, self._perform, clock)
        self._nursery: trio.Nursery | None = None
        self._listeners: list[Listener] = []
        self._leader = LeaderAndEpoch(None, 0)
        self._voters = self._raft.state.voters
        self._foreign: set[int] = set()
        self._commits: deque[Commit] = deque()
        self._delivered = 0
        self._to_deliver: deque[Committed | LeaderKnown | SnapshotLoaded] = deque()
        self._delivery_news = trio.Event()
        self._waiters: list[tuple[int, trio.Event]] = []
        self._turn_done = trio.Event()
        self._scarcity = Scarcity(storage, clock)

    # Interface ------------------------------------------------------------------------------
    def add_listener(self, listener: Listener) -> None:
        """Add a listener before ``run``: it receives everything from the latest snapshot on."""
        self._listeners.append(listener)

    def leader(self) -> LeaderAndEpoch:
        """Return the leader that was announced last."""
        return self._leader

    def leader_node(self) -> Node | None:
        """Return the leader's address; None while there is no leader."""
        return self._raft.state.leader_node() if self._leader.leader_id is not None else None

    @property
    def state(self) -> RaftState:
        """The raft machine's state; callers must not change it."""
        return self._raft.state

    @property
    def voters(self) -> VoterSet:
        return self._raft.state.voters

    @property
    def voter_nodes(self) -> tuple[Node, ...]:
        """The voters, each with the endpoint that this node connects to."""
        return self._raft.state.voter_nodes

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only voter."""
        return self.voters.is_only(self._raft.state.key)

    @property
    def kraft_version(self) -> int:
        return self._raft.state.history.kraft_version

    @property
    def next_offset(self) -> int:
        """The offset of the next appended record."""
        return self._raft.state.log.end_offset

    @property
    def high_watermark(self) -> int:
        """The end of what is committed; 0 while unknown."""
        return self._raft.state.high_watermark or 0

    @property
    def delivered_offset(self) -> int:
        """The end of what listeners have received."""
        return self._delivered

    async def append(self, records: Sequence[Record], epoch: int) -> Commit:
        """Append records as one batch; waits only while the backlog is too large."""
        while self._driver.backlog > BACKLOG_MAX:
            await self._turn_done.wait()
        return self.append_nowait(records, epoch)

    def append_nowait(
        self,
        records: Sequence[Record],
        epoch: int,
        level: int = NEWEST,
        packed: Payload | None = None,
    ) -> Commit:
        """Append records as one batch; raise NotController unless this node leads that epoch.

        Many records may have been ``packed`` before.
        """
        values = tuple(pack(record, level) for record in records) if packed is None else packed
        return self._started(self._driver.feed(Append(object(), epoch, values)))

    def check_kraft_version(self, version: int) -> None:
        """Raise the reason if kraft.version cannot be raised now."""
        from kwire.raftmeta.raft import reconfig

        reconfig.check_upgrade(self._raft.state, version)

    async def upgrade_kraft_version(self, version: int) -> Commit:
        """Raise kraft.version."""
        return self._started(self._driver.feed(UpgradeKraftVersion(object(), version)))

    def _started(self, effects: Iterable[Effect]) -> Commit:
        for effect in effects:
            match effect:
                case Refused(_, error):
                    raise error
                case Appended(_, base_offset, last_offset):
                    commit = Commit(base_offset, last_offset, self._raft.state.epoch)
                    self._commits.append(commit)
                    return commit
                case _:
                    pass
        raise AssertionError("an append was neither taken nor refused")

    async def wait_caught_up(self) -> None:
        """Wait until the listeners have received all before the leader's present high watermark.

        If that is not known yet, wait for it first.
        """
        while (committed := self._known_committed()) is None:
            await self._turn_done.wait()
        await self.wait_until(committed)

    def _known_committed(self) -> int | None:
        """Return the high watermark that the leader reported; None before it has."""
        role = self._raft.state.role
        if isinstance(role, Follower):
            return role.committed
        leads = isinstance(role, Leader) and self.high_watermark > role.epoch_start
        return self.high_watermark if leads else None

    async def wait_until(self, end_offset: int) -> None:
        """Wait until the listeners have received everything before ``end_offset``."""
        if self._delivered < end_offset:
            event = trio.Event()
            self._waiters.append((end_offset, event))
            await event.wait()

    async def handle(self, request: RaftRequest) -> RaftResponse:
        """Answer a request of another node or of a tool."""
        pending = _Pending()
        self._driver.feed(Received(pending, request))
        await pending.event.wait()
        assert pending.response is not None
        return pending.response

    def resign(self, epoch: int) -> None:
        """Resign from the leadership of this epoch."""
        self._driver.feed(Resign(epoch))

    async def write_snapshot(
        self,
        end_offset: int,
        epoch: int,
        contents: Iterable[Sequence[Record]],
        last_timestamp_ms: int,
        level: int = NEWEST,
    ) -> SnapshotId:
        """Store the state after the (committed) records before ``end_offset`` as a snapshot."""
        snapshot = SnapshotId(end_offset, epoch)
        voters, kraft_version = self._raft.state.history.at(end_offset)
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
        await self._on_disk(store, in_thread=self._storage.blocks)
        await self._installed()
        self._driver.feed(SnapshotTaken(snapshot, alone=not self._has_room_before(snapshot)))
        return snapshot

    def _has_room_before(self, snapshot: SnapshotId) -> bool:
        """Whether the snapshot before this one may be kept beside it."""
        storage = self._storage
        known = [s for s in self._raft.state.log.snapshots if s.end_offset > 0]
        older = [s for s in known if s < snapshot]
        if not older:
            return True
        size = storage.log_size() + sum(map(storage.snapshot_size, (*older, snapshot)))
        seen = snapshot_timestamp(storage.read_snapshot(older[-1], 0, SNAPSHOT_HEAD_BYTES))
        return not self._retention.forbids(size, self._clock.now_ms() - seen if seen >= 0 else 0)

    # Running --------------------------------------------------------------------------------
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the node until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._deliver_initial_snapshot()
                self._driver.feed(Started())
                nursery.start_soon(self._deliver_all)
                nursery.start_soon(self._driver.run)
                task_status.started()
        finally:
            self._nursery = None
            self._fail_commits()
            self._storage.close()

    async def shut_down(self) -> None:
        """Let the others elect a leader at once; call it before ``run`` is cancelled.

        They may need this node's vote for that.
        """
        self._driver.feed(Shutdown())
        state = self._raft.state
        if not isinstance(state.role, Resigned):
            return
        with trio.move_on_after(SHUTDOWN_SECONDS):
            while isinstance(state.role, Resigned) or state.leader_id is None:
                await self._turn_done.wait()

    async def _perform(self, turn: list[Effect]) -> None:
        """Perform one turn of the driver."""
        written = await self._write(turn)
        if written.needs_sync:
            sync = await self._on_disk(self._storage.start_sync)
            if sync is not None:
                await self._on_disk(sync, in_thread=True)
                self._storage.end_sync()
        for outcome in written.outcomes:
            self._finish(outcome)
        self._tell_of_voters()
        self._turn_done.set()
        self._turn_done = trio.Event()

    async def _write(self, turn: list[Effect]) -> Written:
        """Make a turn's writes; a thread checks, syncs and installs a snapshot.

        No other task reads from the disk then: delivery waits while ``installing`` is set.
        """
        installs = any(isinstance(effect, InstallSnapshot) for effect in turn)
        work = Turn(turn)
        return await self._on_disk(
            partial(work.write, self._storage),
            in_thread=installs and self._storage.blocks,
            can_go_on=lambda: work.can_go_on,
        )

    async def _on_disk(
        self,
        call: Callable[[], T],
        *,
        in_thread: bool = False,
        can_go_on: Callable[[], bool] = lambda: True,
    ) -> T:
        """Make a call that opens files; if descriptors run out, wait and repeat it.

        This node is silent meanwhile: it sends no vote and no records that are not durable.
        """
        for attempt in count():
            try:
                return await trio.to_thread.run_sync(call) if in_thread else call()
            except (OSError, KafkaStorageError) as error:
                if not lacks_descriptors(error) or not can_go_on():
                    raise
                await trio.sleep(self._scarcity.wait_s(error, attempt))
        raise AssertionError("counting ended")

    def _tell_of_voters(self) -> None:
        voters = self._raft.state.voters
        if voters is not self._voters and voters != self._voters:
            ids = ",".join(str(voter.id) for voter in voters)
            logger.info("quorum has voters ids=%s offset=%d", ids, self.next_offset)
        self._voters = voters

    def _finish(self, outcome: Outcome) -> None:
        match outcome:
            case Send():
                assert self._nursery is not None
                self._nursery.start_soon(self._call, outcome)
            case Reply(token, response):
                assert isinstance(token, _Pending)
                token.response = response
                token.event.set()
            case SnapshotRefused(snapshot):
                logger.warning("snapshot refused end=%d epoch=%d", *snapshot)
                self._driver.feed(outcome)
            case SnapshotLoaded():
                self._driver.feed(outcome)
                self._queue_delivery(outcome)
            case Committed() | LeaderKnown():
                self._queue_delivery(outcome)

    async def _call(self, send: Send) -> None:
        """Send a request to its node; at most one of a kind is in flight to a node.

        The network's own timeout ends first: it closes the connection that does not answer.
        """
        response: RaftResponse | None = None
        refused = False
        with trio.move_on_after(2 * self._raft.state.config.request_timeout):
            try:
                response = await self._peers.call(send.node, send.request)
            except ConnectionRefusedError:
                refused = True
        if response is not None:
            self._tell_of_clusters(send.node, response.error_code)
        self._driver.feed(Answered(send.call_id, response, refused))

    def _tell_of_clusters(self, node: Node, error_code: int) -> None:
        """Log a node of another cluster once, until its answers change; it is still asked."""
        if error_code != errors.InconsistentClusterId.code:
            self._foreign.discard(node.id)
        elif node.id not in self._foreign:
            self._foreign.add(node.id)
            own = self._raft.state.config.cluster_id
            text = "another cluster's controller id=%d address=%s:%d own cluster=%s"
            logger.error(text, node.id, node.host, node.port, own)

    # Delivery to listeners ------------------------------------------------------------------
    def _queue_delivery(self, item: Committed | LeaderKnown | SnapshotLoaded) -> None:
        self._to_deliver.append(item)
        self._delivery_news.set()

    async def _deliver_initial_snapshot(self) -> None:
        newest = self._raft.state.log.latest_snapshot
        if newest is not None and newest.end_offset > 0:
            await self._deliver_snapshot(newest)

    async def _deliver_all(self) -> None:
        while True:
            while self._to_deliver:
                await self._installed()
                item = self._to_deliver.popleft()
                match item:
                    case Committed(end_offset):
                        await self._deliver_log(end_offset)
                    case LeaderKnown(leader_id, epoch, active):
                        self._deliver_leader(LeaderAndEpoch(leader_id, epoch, active))
                    case SnapshotLoaded(snapshot):
                        await self._deliver_snapshot(snapshot)
            self._delivery_news = trio.Event()
            await self._delivery_news.wait()

    async def _deliver_log(self, end_offset: int) -> None:
        """Hand over what is committed, in pieces, so that others get their turn."""
        attempt = 0
        while self._delivered < end_offset:
            await self._installed()
            if self._delivered < self._raft.state.log.start_offset:
                return  # A snapshot that is queued later covers this.
            try:
                data = self._storage.read(self._delivered, end_offset, DELIVERY_BYTES)
            except (OSError, KafkaStorageError) as error:
                if not lacks_descriptors(error):
                    raise
                await trio.sleep(self._scarcity.wait_s(error, attempt))
                attempt += 1
                continue  # a snapshot may have taken the log's place meanwhile
            attempt = 0
            check_log(data, self._delivered)
            batches = await decode_batches(data, Slices(self._clock.now))
            batches = [b for b in batches if b.last_offset >= self._delivered]
            assert batches, (self._delivered, end_offset)
            for listener in self._listeners:
                if (rest := listener.on_commit(batches)) is not None:
                    await rest
            self._has_delivered(batches[-1].end_offset)
            if self._delivered < end_offset:
                await trio.lowlevel.checkpoint()

    async def _installed(self) -> None:
        """Wait until no snapshot is being installed: the disk is then ahead of the raft state."""
        while self._raft.state.installing is not None:
            await self._turn_done.wait()

    async def _deliver_snapshot(self, snapshot: SnapshotId) -> None:
        """Deliver a snapshot, unless a later one that is queued behind it has replaced it."""
        data = await self._read_snapshot(snapshot)
        if data is None:
            return
        check_snapshot(snapshot, data)
        reader = await decode_snapshot(SnapshotReader(snapshot, data), Slices(self._clock.now))
        for listener in self._listeners:
            if (rest := listener.on_snapshot(reader)) is not None:
                await rest
        self._has_delivered(snapshot.end_offset)

    async def _read_snapshot(self, snapshot: SnapshotId) -> bytes | None:
        """Return a snapshot's bytes; None if it has been replaced."""

        def read() -> bytes:
            size = self._storage.snapshot_size(snapshot)
            return bytes(self._storage.read_snapshot(snapshot, 0, size))

        try:
            return await self._on_disk(read, in_thread=self._storage.blocks)
        except (KeyError, FileNotFoundError):
            await self._installed()
            if snapshot in self._raft.state.log.snapshots:
                raise
            return None

    def _deliver_leader(self, leader: LeaderAndEpoch) -> None:
        if (leader.leader_id, leader.epoch) != (self._leader.leader_id, self._leader.epoch):
            if leader.leader_id is None:
                logger.info("quorum has no leader epoch=%d", leader.epoch)
            else:
                logger.info("quorum has a leader id=%d epoch=%d", leader.leader_id, leader.epoch)
        self._leader = leader
        self._fail_commits()
        for listener in self._listeners:
            listener.on_leadership(leader)

    def _has_delivered(self, end_offset: int) -> None:
        self._delivered = max(self._delivered, end_offset)
        while self._commits and self._commits[0].offset < end_offset:
            self._commits.popleft()._finish()
        if self._waiters:
            ready = [event for at, event in self._waiters if at <= end_offset]
            self._waiters = [w for w in self._waiters if w[0] > end_offset]
            for event in ready:
                event.set()

    def _fail_commits(self) -> None:
        """Fail the commits of an ended leadership: only the next leader knows if they survive."""
        leads = self._leader.leader_id == self._raft.state.config.node_id
        current = self._leader.epoch if leads and self._nursery is not None else -1
        for commit in self._commits:
            if commit.epoch != current:
                commit._finish(errors.NotController())
        self._commits = deque(c for c in self._commits if c.epoch == current)
