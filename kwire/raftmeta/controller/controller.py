"""The controller of a node: runs deciders, appends their records, replies after the commit.

A decision and its append happen in one step, so the records get the offsets that the decision
assumed. A large decision, instead, is made, packed and applied in slices: other deciders wait for
it, while other tasks continue. The controller's state is ahead of what is committed; when
leadership is lost, it returns to the published image. A decision without records is answered once
everything that it may have read is committed, and only while no other node can have become active.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeGuard, TypeVar

import trio

from kwire import errors
from kwire.clock import Clock
from kwire.codec.messages.metadata_records import (
    AbortTransactionRecord,
    MetadataRecord,
    NoOpRecord,
)
from kwire.drive import give_way
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.controller.brokers import begin_sessions, keep_session
from kwire.raftmeta.controller.features import bootstrap_records
from kwire.raftmeta.controller.mutation_quota import Permit, Requester
from kwire.raftmeta.controller.state import (
    ControllerDecision,
    ControllerState,
    Deciding,
    first_steps,
)
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.image import Applied
from kwire.raftmeta.metadata.image_change import changes_all_topics
from kwire.raftmeta.metadata.image_loader import STEP_RECORDS
from kwire.raftmeta.metadata.publisher import AT_ONCE, MetadataPublisher
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.storage.levels import at_level, level_of
from kwire.raftmeta.storage.records import pack
from kwire.records.build import Payload
from kwire.waits import Signal

logger = logging.getLogger(__name__)

Q = TypeVar("Q")
R = TypeVar("R")
Decide = Callable[[ControllerState, Q], Deciding[R]]


class Controller:
    """This node's controller; active while the node leads the quorum."""

    def __init__(
        self,
        quorum: RaftService,
        publisher: MetadataPublisher,
        state: ControllerState,
        clock: Clock,
        *,
        bootstrap: Sequence[MetadataRecord] = (),
        own_broker: int | None = None,
    ) -> None:
        self._quorum = quorum
        self._publisher = publisher
        self._clock = clock
        self._bootstrap = list(bootstrap)
        self._own_broker = own_broker
        self.epoch: int | None = None
        """The leader epoch in which this node is the active controller; None while it is not."""
        self._active_from: int | None = None
        """The first offset that this node writes as the active controller."""
        self._last_commit: Commit | None = None
        """The latest append, for whose commit a decision without records waits."""
        self._changed = Signal()
        self._large_decision: trio.Event | None = None
        """Set when the large decision in progress ends; None without one."""
        self.state = state
        quorum.add_record_listener(publisher)
        quorum.add_leadership_listener(self)
        quorum.voters_listeners.append(self._notify)

    @property
    def is_active(self) -> bool:
        """True if this node is the active controller."""
        return self.epoch is not None

    async def call(
        self,
        decide: "Decide[Q, R]",
        request: Q,
        *,
        in_force: bool = False,
    ) -> R:
        """Run a decider; return its reply once the records are committed.

        With ``in_force``, also wait until this node's broker has applied the records. That can take
        as long as the broker's disk hangs, so use ``in_force`` only for responses to this broker's
        own clients, never where timers or other nodes depend on the call.

        Raises NotController when this node is not active, or loses leadership meanwhile; in that
        case, only the next controller knows whether the records survive. Also raises NotController
        in place of a refusal, or of any decision without records, if another node may have become
        the active controller without this node's knowledge, for example after a pause: this node's
        metadata may then be outdated.
        """
        decision: ControllerDecision[R] | None = None
        while decision is None or decision.again:
            await self.wait_ready()
            try:
                deciding = self._decide(decide, request)
                decision = deciding if _is_small(deciding) else await self._decide_slowly(deciding)
            except errors.KafkaError:
                self._check_in_office()
                raise
            if decision is None:
                continue
            commit = self._last_commit
            if commit is not None:
                await commit.wait()
        if in_force and commit is not None:
            await self._publisher.wait_applied(commit.offset)
        return decision.reply

    @property
    def is_ready(self) -> bool:
        """True if a decision would be made at once."""
        return self._large_decision is None

    async def wait_ready(self) -> None:
        """Wait for a large decision in progress; build the index of a new active controller."""
        while True:
            if self._large_decision is not None:
                await self._large_decision.wait()
            elif self.is_active and not self.state.build_index():
                await give_way()
            else:
                return

    def _decide(self, decide: "Decide[Q, R]", request: Q) -> Deciding[R]:
        """Decide and append; leave a large decision to :meth:`_decide_slowly`."""
        if self.epoch is None:
            raise errors.NotController
        state = self.state
        state.next_offset, state.now = self._quorum.next_offset, self._clock.now()
        deciding = first_steps(decide(state, request))
        if _is_small(deciding):
            if deciding.records:
                self._append(deciding.records)
            else:
                self._check_in_office()
            deciding.take_effect()
        return deciding

    def _check_in_office(self) -> None:
        """Raise NotController if another node may already be the active controller."""
        if self._quorum.may_be_replaced(self._clock.now()):
            raise errors.NotController

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        assert self.epoch is not None
        expected = self._quorum.next_offset
        level = level_of(self.state.image.features)
        records = at_level(records, level)
        commit = self._quorum.append_nowait(records, self.epoch, level)
        assert commit.base_offset == expected, "decisions count on the offsets they saw"
        applied = Applied(commit.offset, commit.epoch, self._clock.now_ms())
        self.state.apply(records, applied)
        self._last_commit = commit
        self._notify()

    async def _decide_slowly(self, deciding: Deciding[R]) -> ControllerDecision[R] | None:
        """Make a large decision in slices and write it as one batch; other deciders wait.

        Return None if the quorum itself appended a record meanwhile, which took the offsets that
        the decision assumed: the decision must then be repeated.
        """
        self._large_decision, epoch = trio.Event(), self.epoch
        decision: ControllerDecision[R] | None = None
        try:
            with trio.CancelScope(shield=True):
                while not isinstance(deciding, ControllerDecision):
                    await self._pause(epoch)
                    deciding = first_steps(deciding)
                if not deciding.records:
                    self._check_in_office()
                if not deciding.records or await self._append_in_slices(deciding.records, epoch):
                    deciding.take_effect()
                    decision = deciding
        finally:
            self._large_decision.set()
            self._large_decision = None
            self._notify()
        return decision

    async def _append_in_slices(self, records: Sequence[MetadataRecord], epoch: int | None) -> bool:
        level = level_of(self.state.image.features)
        written: list[MetadataRecord] = []
        payload = Payload()
        for start in range(0, len(records), AT_ONCE):
            await self._pause(epoch)  # The decision took a whole turn.
            part = at_level(records[start : start + AT_ONCE], level)
            for record in part:
                payload.add(pack(record, level))
            written += part
        await self._pause(epoch)
        if self._quorum.next_offset != self.state.next_offset:
            return False
        assert epoch is not None
        commit = self._quorum.append_nowait(written, epoch, level, payload)
        self._last_commit = commit
        applied = Applied(commit.offset, commit.epoch, self._clock.now_ms())
        for count, _ in enumerate(self.state.applying(written, applied), 1):
            if count % (AT_ONCE // STEP_RECORDS) == 0:
                await self._pause(epoch)
        return True

    async def _pause(self, epoch: int | None) -> None:
        """Yield to other tasks; raise NotController if leadership was lost meanwhile."""
        await give_way()
        if self.epoch != epoch:
            raise errors.NotController

    @property
    def is_alone(self) -> bool:
        """True if no other node can be the active controller."""
        return self._quorum.is_alone

    @property
    def may_wait_for_voters(self) -> bool:
        """True if this controller is active, but other voters must acknowledge its records."""
        return self.is_active and not self.is_alone

    def keep_session(self, broker_id: int) -> bool:
        """Keep a broker's session open without heartbeats; return whether that is possible.

        It is possible while this controller is active and no other node can become active.
        """
        if not (self.is_alone and self.is_active):
            return False
        keep_session(self.state, broker_id)
        return True

    def has_decided(self, offset: int) -> bool:
        """Return whether this controller wrote the record at ``offset`` since it became active."""
        return self._active_from is not None and offset >= self._active_from

    async def wait_replaceable(self) -> None:
        """Wait until this node is not the active controller, or another node can be."""
        while self.epoch is not None and self.is_alone:
            await self.wait_change()

    async def wait_active(self) -> None:
        """Wait until this node is the active controller."""
        while self.epoch is None:
            await self.wait_change()

    async def wait_change(self) -> None:
        """Wait until records are appended, voters change, or leadership begins or ends."""
        await self._changed.wait()

    def append_no_op(self) -> None:
        """Append a NoOpRecord if this node is active and no large decision is in progress."""
        if self.is_active and self._large_decision is None:
            with suppress(errors.NotController):
                self._append([NoOpRecord()])

    def permit(self, requester: Requester, *, strict: bool) -> Permit:
        """Return the permit for a client's request to create or delete."""
        state, (_, user) = self.state, requester.principal
        now = self._clock.now()
        return state.mutations.permit(
            state.image.quotas, user, requester.client_id, now, strict=strict
        )

    # Leadership -----------------------------------------------------------------------------
    # Commits and snapshots are not listened to: a controller applies its records as it appends
    # them, and takes the published image when it becomes active.

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        if not leader.is_active:
            self._resign()
        elif self.epoch != leader.epoch:
            self._begin(leader.epoch)

    def _resign(self) -> None:
        if self.epoch is not None:
            logger.info("controller resigned epoch=%d", self.epoch)
        self.epoch = self._active_from = self._last_commit = None
        self.state.reset(self._publisher.image, 0)
        self._notify()

    def _begin(self, epoch: int) -> None:
        """Become the active controller, and first append the records that the log lacks."""
        image = self._publisher.image
        self.state.reset(image, self._quorum.next_offset)
        self.epoch, self._active_from, self._last_commit = epoch, self._quorum.next_offset, None
        own = self._own_broker if self.is_alone else None
        self.state.now = self._clock.now()
        begin_sessions(self.state, own)
        logger.info("controller active epoch=%d offset=%d", epoch, self.state.next_offset)
        try:
            if self._publisher.in_transaction:
                self._append([AbortTransactionRecord(reason="controller failover")])
            if not image.features:
                self._append(bootstrap_records(self.state, self._bootstrap))
        except errors.NotController:  # Leadership is lost, but not yet announced.
            self._resign()
        self._notify()

    def _notify(self) -> None:
        self._changed.notify()


def _is_small(deciding: Deciding[R]) -> TypeGuard[ControllerDecision[R]]:
    """True if a decision is ready and its records can be appended in the same turn."""
    return (
        isinstance(deciding, ControllerDecision)
        and len(deciding.records) <= AT_ONCE
        and not any(map(changes_all_topics, deciding.records))
    )
