"""The metadata quorum's interface to the broker: runs :class:`Raft` on a disk and a network.

* ``append`` writes records if this node leads; its :class:`Commit` completes when they are
  committed *and* the listeners have received them (:mod:`kwire.raftmeta.delivery`).
* The service works in turns (:mod:`kwire.drive`): writes, one fsync, then messages, answers and
  commits. Sending never waits for a peer, and delivery to listeners never delays consensus.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from kwire.clock import NodeClock
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.drive import Driver
from kwire.errors import KafkaError
from kwire.raftmeta.commits import Commit, PendingCommits
from kwire.raftmeta.delivery import (
    Delivery,
    LeaderAndEpoch,
    LeadershipListener,
    RecordListener,
)
from kwire.raftmeta.disk_calls import DiskCalls
from kwire.raftmeta.network_channel import NetworkChannel, NoPeers, Peers
from kwire.raftmeta.raft import progress
from kwire.raftmeta.raft.cleaning import MetadataRetention
from kwire.raftmeta.raft.events import (
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
    Started,
    UpgradeKraftVersion,
)
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Follower, Leader, Resigned
from kwire.raftmeta.raft.state import RaftConfig, RaftState, Random
from kwire.raftmeta.raft.voters import Node, VoterSet
from kwire.raftmeta.snapshot_writer import SnapshotWriter
from kwire.raftmeta.storage.levels import NEWEST
from kwire.raftmeta.storage.records import pack
from kwire.raftmeta.storage.storage import MetadataStorage
from kwire.raftmeta.storage.storage_turn import Outcome, Turn, Written
from kwire.records.build import Payload
from kwire.waits import Signal

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import RaftRequest, RaftResponse

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 1.0
"""Seconds that a stopping leader waits until the other voters have elected a leader."""


@attrs.define(eq=False, repr=False)
class _Pending:
    """A request whose sender waits for the answer."""

    event: trio.Event = attrs.field(factory=trio.Event)
    response: RaftResponse | None = None


class StepObserver(Protocol):
    """Sees every step of the consensus machine, for example to check it in a simulation."""

    def on_step(self, state: RaftState, effects: Sequence[Effect], *, led: bool) -> None:
        """Observe a step: the state after it and its effects.

        ``led``: whether the node led before the step.
        """


@attrs.frozen(eq=False, repr=False)
class _ObservedRaft:
    """The consensus machine, with an observer of its steps."""

    raft: Raft
    observer: StepObserver

    @property
    def deadline(self) -> float:
        return self.raft.deadline

    def step(self, event: Event | None, now: float, now_ms: int) -> tuple[Effect, ...]:
        state = self.raft.state
        led = isinstance(state.role, Leader)
        effects = self.raft.step(event, now, now_ms)
        self.observer.on_step(state, effects, led=led)
        return effects


class RaftService:
    """This node's part in the metadata quorum."""

    def __init__(
        self,
        config: RaftConfig,
        storage: MetadataStorage,
        *,
        clock: NodeClock,
        random: Random,
        configured: VoterSet | None = None,
        peers: Peers | None = None,
        retention: MetadataRetention | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        self._storage = storage
        self._disk = DiskCalls(storage, clock)
        self._raft = Raft(config, storage.load(configured or VoterSet()), random)
        self._raft.state.suspended_s = clock.suspended_s
        machine = self._raft if observer is None else _ObservedRaft(self._raft, observer)
        self._driver: Driver[Event, Effect] = Driver(machine, self._perform, clock)
        self._channel = NetworkChannel(peers or NoPeers(), config, self._driver.feed)
        self._commits = PendingCommits()
        self.delivery = Delivery(
            self._raft.state, storage, self._disk, self._commits, clock, self._wait_installed
        )
        self.snapshots = SnapshotWriter(
            self._raft.state,
            storage,
            self._disk,
            retention or MetadataRetention(),
            clock,
            self._wait_installed,
            self._driver.feed,
        )
        self._nursery: trio.Nursery | None = None
        self._voters = self._raft.state.voters
        self.voters_listeners: list[Callable[[], None]] = []
        """Called when the voters in this node's log have changed."""
        self._turn_end = Signal()

    # Interface ------------------------------------------------------------------------------
    def add_record_listener(self, listener: RecordListener) -> None:
        """Add a listener before ``run``; it gets everything from the latest snapshot onwards."""
        self.delivery.record_listeners.append(listener)

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Add a listener before ``run``."""
        self.delivery.leadership_listeners.append(listener)

    def leader(self) -> LeaderAndEpoch:
        """Return the leader that was announced last."""
        return self.delivery.leader

    def leader_node(self) -> Node | None:
        """Return the leader's address; None while there is no leader."""
        return None if self.leader().leader_id is None else self._raft.state.leader_node()

    @property
    def state(self) -> RaftState:
        """The raft state machine's state; callers must not change it."""
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
        """True if this node is the only voter."""
        return self.voters.is_only(self._raft.state.key)

    def may_be_replaced(self, now: float) -> bool:
        """Return whether this node does not lead, or may have a successor without knowing of it."""
        return progress.may_be_replaced(self._raft.state, now)

    @property
    def kraft_version(self) -> int:
        return self._raft.state.history.kraft_version

    @property
    def next_offset(self) -> int:
        """The offset of the next record to be appended."""
        return self._raft.state.log.end_offset

    @property
    def high_watermark(self) -> int:
        """The offset after the last committed record; 0 while unknown."""
        return self._raft.state.high_watermark or 0

    def append_nowait(
        self,
        records: Sequence[MetadataRecord],
        epoch: int,
        level: int = NEWEST,
        packed: Payload | None = None,
    ) -> Commit:
        """Append records as one batch; raise NotController unless this node leads ``epoch``.

        ``packed``: the same records, if they were packed in advance because there are many.
        """
        values = tuple(pack(record, level) for record in records) if packed is None else packed
        return self._add_commit(self._driver.feed(Append(object(), epoch, values)))

    def check_kraft_version(self, version: int) -> None:
        """Raise the reason if kraft.version cannot be raised now."""
        from kwire.raftmeta.raft import reconfig

        reconfig.check_upgrade(self._raft.state, version)

    async def upgrade_kraft_version(self, version: int) -> Commit:
        """Raise kraft.version; return the commit of the change."""
        return self._add_commit(self._driver.feed(UpgradeKraftVersion(object(), version)))

    def _add_commit(self, effects: Iterable[Effect]) -> Commit:
        for effect in effects:
            match effect:
                case Refused(_, error):
                    raise error
                case Appended(_, base_offset, last_offset):
                    return self._commits.add(base_offset, last_offset, self._raft.state.epoch)
                case _:
                    pass
        raise AssertionError("an append was neither accepted nor rejected")

    async def wait_caught_up(self) -> None:
        """Wait until listeners have received everything before the leader's high watermark.

        If the high watermark is not known yet, wait for it first; its later growth does not count.
        """
        while (end_offset := self._leader_high_watermark()) is None:
            await self._turn_end.wait()
        await self.delivery.wait_delivered(end_offset)

    def _leader_high_watermark(self) -> int | None:
        """Return the high watermark that the leader reported; None until it has."""
        role = self._raft.state.role
        if isinstance(role, Follower):
            return role.committed
        leads = isinstance(role, Leader) and self.high_watermark > role.epoch_start
        return self.high_watermark if leads else None

    async def handle(self, request: RaftRequest, listener: str = "") -> RaftResponse:
        """Answer a request from another node or a tool.

        ``listener``: this node's listener that received it, unless that is the first controller
        listener.
        """
        pending = _Pending()
        self._driver.feed(Received(pending, request))
        await pending.event.wait()
        response = pending.response
        assert response is not None
        if listener and listener != self._raft.state.config.listener:
            # Messages of the quorum are not imported at the start of a single node.
            from kwire.raftmeta.raft import messages

            messages.name_leader_on(listener, self._raft.state, response)
        return response

    def resign(self, epoch: int) -> None:
        """Resign from the leadership of ``epoch``."""
        self._driver.feed(Resign(epoch))

    # Running --------------------------------------------------------------------------------
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part in the quorum until cancelled.

        If closing the log fails after an error, both are raised, the first one first: the later
        error is often only its consequence.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self.delivery.deliver_initial_snapshot()
                self._driver.feed(Started())
                nursery.start_soon(self.delivery.run)
                nursery.start_soon(self._driver.run)
                task_status.started()
        except BaseException as first:
            try:
                self._close()
            except (OSError, KafkaError) as later:
                raise BaseExceptionGroup("the metadata log failed", [first, later]) from None
            raise
        self._close()

    def _close(self) -> None:
        self._nursery = None
        self._commits.fail_unless(None)
        self._storage.close()

    def shut_down(self) -> None:
        """Stop leading, and let the other voters elect a leader at once."""
        self._driver.feed(Shutdown())

    async def wait_successor(self) -> None:
        """Wait for the election of another leader, if this node led when it was shut down.

        The other voters may need this node's vote, so cancel ``run`` only after this.
        """
        state = self._raft.state
        if not isinstance(state.role, Resigned):
            return
        with trio.move_on_after(SHUTDOWN_SECONDS):
            while isinstance(state.role, Resigned) or state.leader_id is None:
                await self._turn_end.wait()

    async def _perform(self, turn: list[Effect]) -> None:
        """Perform one turn of the driver."""
        written = await self._write(turn)
        if written.needs_sync:
            sync = await self._disk.run(self._storage.start_sync)
            if sync is not None:
                await self._disk.run(sync, in_thread=True)
                self._storage.end_sync()
        for outcome in written.outcomes:
            self._finish(outcome)
        self._follow_voters()
        self._turn_end.notify()

    async def _write(self, turn: list[Effect]) -> Written:
        """Perform a turn's writes; a thread checks, syncs and installs a snapshot.

        No other task reads from the disk meanwhile: delivery waits while ``installing`` is set.
        """
        installs = any(isinstance(effect, InstallSnapshot) for effect in turn)
        work = Turn(turn)
        while True:
            written = await self._disk.run(
                partial(work.write, self._storage),
                in_thread=installs and self._storage.blocks,
                can_go_on=lambda: work.can_go_on,
            )
            if written is not None:
                return written
            await trio.lowlevel.checkpoint()

    async def _wait_installed(self) -> None:
        """Wait until no snapshot installation is in progress, with the disk ahead of the state."""
        while self._raft.state.installing is not None:
            await self._turn_end.wait()

    def _follow_voters(self) -> None:
        voters = self._raft.state.voters
        if voters is not self._voters and voters != self._voters:
            ids = ",".join(str(voter.id) for voter in voters)
            logger.info("quorum has voters ids=%s offset=%d", ids, self.next_offset)
            for on_changed in self.voters_listeners:
                on_changed()
        self._voters = voters

    def _finish(self, outcome: Outcome) -> None:
        match outcome:
            case Send():
                assert self._nursery is not None
                self._nursery.start_soon(self._channel.call, outcome)
            case Reply(token, response):
                assert isinstance(token, _Pending)
                token.response = response
                token.event.set()
            case SnapshotRefused(snapshot):
                logger.warning("snapshot refused end=%d epoch=%d", *snapshot)
                self._driver.feed(outcome)
            case SnapshotLoaded():
                self._driver.feed(outcome)
                self.delivery.put(outcome)
            case Committed() | LeaderKnown():
                self.delivery.put(outcome)
