"""The controller of a node: runs the deciders, appends their records, answers after the commit.

A decision and its append happen in one step, so the records get the offsets that the decision
assumed. A large decision is packed and applied in slices instead: other deciders wait for it,
other tasks go on. The controller's state is ahead of what is committed; when leadership is lost
it returns to the published image. A decision without records is answered when everything
it may have read is committed. Timers run only while there are other brokers to watch.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from kwire import errors
from kwire.clock import Clock
from kwire.codec.messages.metadata_records import AbortTransactionRecord, NoOpRecord
from kwire.drive import give_way
from kwire.raftmeta.controller.brokers import begin_sessions, decide_fence_stale
from kwire.raftmeta.controller.features import bootstrap_records
from kwire.raftmeta.controller.leaders import decide_sweep, resume_sweeps
from kwire.raftmeta.controller.mutation_quota import Permit, Requester
from kwire.raftmeta.controller.state import ControllerState, Decision
from kwire.raftmeta.metadata.image import Applied
from kwire.raftmeta.metadata.image_loader import STEP_RECORDS
from kwire.raftmeta.metadata.internal_topics import creatable
from kwire.raftmeta.metadata.publisher import AT_ONCE, MetadataPublisher
from kwire.raftmeta.service import Commit, LeaderAndEpoch, RaftService
from kwire.raftmeta.storage.levels import at_level, level_of
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader, pack
from kwire.records.build import Payload

if TYPE_CHECKING:
    from kwire.codec.messages.create_topics import CreateTopicsResponse

    Created = CreateTopicsResponse.CreatableTopicResult

logger = logging.getLogger(__name__)

Q = TypeVar("Q")
R = TypeVar("R")
Decide = Callable[[ControllerState, Q, float], Decision[R]]

FOLLOW_SECONDS: Final = 5.0
"""Seconds to wait until a topic that another controller created is known on this node."""


class Controller:
    """This node's controller; active while the node leads the quorum."""

    def __init__(
        self,
        quorum: RaftService,
        publisher: MetadataPublisher,
        state: ControllerState,
        clock: Clock,
        *,
        bootstrap: Sequence[Any] = (),
        own_broker: int | None = None,
        elsewhere: "Callable[[Any], Awaitable[Any]] | None" = None,
        on_behalf: "Callable[[Any, Requester], Awaitable[Any]] | None" = None,
    ) -> None:
        """``elsewhere`` asks the active controller for this node, ``on_behalf`` for a client."""
        self._quorum = quorum
        self._publisher = publisher
        self._clock = clock
        self._bootstrap = list(bootstrap)
        self._own_broker = own_broker
        self._elsewhere = elsewhere
        self._on_behalf = on_behalf
        self._epoch: int | None = None
        self._since: int | None = None
        self._last: Commit | None = None
        self._news = trio.Event()
        self._large: trio.Event | None = None
        self._creating: dict[str, trio.Event] = {}
        self._not_created: dict[str, str | None] = {}
        self.state = state
        quorum.add_listener(publisher)
        quorum.add_listener(self)

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._epoch is not None

    async def call(self, decide: "Decide[Q, R]", request: Q, *, in_force: bool = False) -> R:
        """Run a decider; return its reply when the records are committed.

        With ``in_force`` also wait until this node's broker has applied them. That may take as long
        as its disk is slow, so it is only for answers to this broker's own clients: neither timers
        nor other nodes depend on it.

        Raises NotController when this node is not active, or lost leadership meanwhile: in that
        case only the next controller knows whether the records survive.
        """
        is_whole = False
        while not is_whole:
            await self._wait_turn()
            decision = self._decide(decide, request)
            if len(decision.records) > AT_ONCE and not await self._append_slowly(decision.records):
                self._forget_decision()
                continue
            is_whole, commit = not decision.again, self._last
            if commit is not None:
                await commit.wait()
        if in_force and commit is not None:
            await self._publisher.wait_applied(commit.offset)
        return decision.reply

    async def _wait_turn(self) -> None:
        """Wait for a large decision in progress; build the index of a new active controller."""
        while True:
            if self._large is not None:
                await self._large.wait()
            elif self.is_active and not self.state.build_index():
                await give_way()
            else:
                return

    def _decide(self, decide: "Decide[Q, R]", request: Q) -> Decision[R]:
        if self._epoch is None:
            raise errors.NotController
        state = self.state
        state.next_offset = self._quorum.next_offset
        decision = decide(state, request, self._clock.now())
        if 0 < len(decision.records) <= AT_ONCE:
            self._append(decision.records)
        return decision

    def _append(self, records: Sequence[Any]) -> None:
        assert self._epoch is not None
        expected = self._quorum.next_offset
        level = level_of(self.state.image.features)
        records = at_level(records, level)
        commit = self._quorum.append_nowait(records, self._epoch, level)
        assert commit.base_offset == expected, "decisions count on the offsets they saw"
        applied = Applied(commit.offset, commit.epoch, self._clock.now_ms())
        self.state.apply(records, applied)
        self._last = commit
        self._wake()

    async def _append_slowly(self, records: Sequence[Any]) -> bool:
        """Write a large decision as one batch, while everything but deciders gets its turns.

        Return False if the quorum wrote a record of its own meanwhile, which took the offsets that
        the decision assumed: the decision has to be made again.
        """
        self._large, is_written = trio.Event(), False
        try:
            with trio.CancelScope(shield=True):
                is_written = await self._append_in_slices(records, self._epoch)
        finally:
            self._large.set()
            self._large = None
            self._wake()
        return is_written

    async def _append_in_slices(self, records: Sequence[Any], epoch: int | None) -> bool:
        level = level_of(self.state.image.features)
        written: list[Any] = []
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
        self._last = commit
        applied = Applied(commit.offset, commit.epoch, self._clock.now_ms())
        for count, _ in enumerate(self.state.applying(written, applied), 1):
            if count % (AT_ONCE // STEP_RECORDS) == 0:
                await self._pause(epoch)
        return True

    def _forget_decision(self) -> None:
        """Undo what a decision that was not written has changed outside the image."""
        if self.is_active:
            self.state.sessions.follow(self.state.image.brokers)
            resume_sweeps(self.state)

    async def _pause(self, epoch: int | None) -> None:
        """Yield to other tasks; raise NotController if leadership was lost meanwhile."""
        await give_way()
        if self._epoch != epoch:
            raise errors.NotController

    @property
    def is_alone(self) -> bool:
        """Whether no other node can be the active controller."""
        return self._quorum.is_alone

    def has_decided(self, offset: int) -> bool:
        """Whether this controller wrote the record at ``offset`` since it became active."""
        return self._since is not None and offset >= self._since

    async def wait_inactive(self) -> None:
        """Wait until this node is not the active controller."""
        while self._epoch is not None:
            await self._news.wait()

    async def wait_active(self) -> None:
        """Wait until this node is the active controller."""
        while self._epoch is None:
            await self._news.wait()

    def permit(self, requester: Requester, *, strict: bool) -> Permit:
        """Return the permit for a client's request to create or delete."""
        state, (_, user) = self.state, requester.principal
        now = self._clock.now()
        return state.mutations.permit(
            state.image.quotas, user, requester.client_id, now, strict=strict
        )

    async def ensure_topics(
        self, names: Sequence[str], requester: Requester | None = None
    ) -> "dict[str, Created]":
        """Create topics on first use, internal ones with their own settings; return the results.

        Existing topics are left out. Requests for the same topic at the same time share one
        creation, which counts for the first requester, or for this broker.
        """
        while under_way := [self._creating[name] for name in names if name in self._creating]:
            await under_way[0].wait()
        missing = [name for name in names if self._publisher.applied.topic(name) is None]
        if not missing:
            return {}
        from kwire.codec.messages.create_topics import CreateTopicsRequest
        from kwire.raftmeta.controller.topics import decide_create_topics

        config = self.state.cluster_config()
        done = trio.Event()
        self._creating.update(dict.fromkeys(missing, done))
        try:
            topics = [creatable(name, config) for name in missing]
            request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
            broker = Requester(("User", "ANONYMOUS"), str(self.state.config.node_id))
            permit = self.permit(requester or broker, strict=True)
            response = await self.call_active(
                partial(decide_create_topics, permit=permit), request, requester
            )
        finally:
            for name in missing:
                del self._creating[name]
            done.set()
        exists = errors.TopicAlreadyExists.code
        await self._seen_here(
            [made.name for made in response.topics if made.error_code in (errors.NONE, exists)]
        )
        return {made.name: made for made in response.topics if made.error_code != exists}

    async def call_active(
        self, decide: "Decide[Q, R]", request: Q, requester: Requester | None = None
    ) -> R:
        """Run a decider here or on the active controller, for a client if one is given."""
        if self._elsewhere is None or self.is_active:
            try:
                return await self.call(decide, request)
            except errors.NotController:
                if self._elsewhere is None:
                    raise
        reply: R
        if requester is not None and self._on_behalf is not None:
            reply = await self._on_behalf(request, requester)
        else:
            reply = await self._elsewhere(request)
        return reply

    async def _seen_here(self, names: Sequence[str]) -> None:
        """Wait until this node knows new topics; at most 5 s if others may be the controller."""
        limit = math.inf if self._elsewhere is None else FOLLOW_SECONDS
        with trio.move_on_after(limit):
            await self._publisher.wait_for(
                lambda image: all(name in image.topic_ids for name in names)
            )

    async def ensure_topic(self, name: str) -> "Created | None":
        """Create one topic on first use; None if it is there already."""
        made = (await self.ensure_topics([name])).get(name)
        reason = None if made is None or made.error_code == errors.NONE else made.error_message
        if reason is not None and reason != self._not_created.get(name):
            logger.warning("not created topic=%s reason=%s", name, reason)
        self._not_created[name] = reason
        return made

    # Listener of the quorum -----------------------------------------------------------------

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Ignore commits: the records were applied when they were appended."""

    def on_snapshot(self, reader: SnapshotReader) -> None:
        """Ignore snapshots: an active controller loads none, another uses the published image."""

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        if not leader.is_active:
            self._resign()
        elif self._epoch != leader.epoch:
            self._begin(leader.epoch)

    def _resign(self) -> None:
        if self._epoch is not None:
            logger.info("controller resigned epoch=%d", self._epoch)
        self._epoch = self._since = self._last = None
        self.state.reset(self._publisher.image, 0)
        self._wake()

    def _begin(self, epoch: int) -> None:
        """Become the active controller; first append the records that the log lacks."""
        image = self._publisher.image
        self.state.reset(image, self._quorum.next_offset)
        self._epoch, self._since, self._last = epoch, self._quorum.next_offset, None
        own = self._own_broker if self.is_alone else None
        begin_sessions(self.state, self._clock.now(), own)
        logger.info("controller active epoch=%d offset=%d", epoch, self.state.next_offset)
        try:
            if self._publisher.in_transaction:
                self._append([AbortTransactionRecord(reason="controller failover")])
            if not image.features:
                self._append(bootstrap_records(self.state, self._bootstrap))
        except errors.NotController:  # The notice that leadership is lost again is still to come.
            self._resign()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    # Watching other brokers -----------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fence brokers that fall silent and give leaderships back, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fence)
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._balance)
            nursery.start_soon(self._wake_leaderless)
            nursery.start_soon(self._say_nothing)
            task_status.started()

    async def _fence(self) -> None:
        while True:
            deadline = self.state.sessions.deadline if self.is_active else math.inf
            wait = deadline - self._clock.now()
            if wait > 0:
                news = self._news
                with trio.move_on_after(wait):
                    await news.wait()
                continue
            await self._try(decide_fence_stale)

    async def _sweep(self) -> None:
        """Continue changes that are too large for one decision, also a predecessor's."""
        resumed: int | None = None
        while True:
            await self._wait_turn()
            if self._epoch not in (None, resumed):
                resumed = self._epoch
                resume_sweeps(self.state)
            if not self.state.sweeps:
                await self._news.wait()
                continue
            await self._try(decide_sweep)

    async def _balance(self) -> None:
        config = self.state.config
        while config.auto_leader_rebalance_enable:
            await self._others()
            await trio.sleep(config.leader_imbalance_check_interval_seconds)
            from kwire.raftmeta.controller.partitions import decide_rebalance_leaders

            await self._try(decide_rebalance_leaders)

    async def _wake_leaderless(self) -> None:
        """Elect leaders for leaderless partitions whose topics may now allow unclean leaders."""
        while True:
            await self._others()
            interval_ms = self.state.config.raw("unclean.leader.election.interval.ms")
            await trio.sleep(interval_ms / 1000)
            from kwire.raftmeta.controller.partitions import decide_elect_unclean

            await self._try(decide_elect_unclean)

    async def _others(self) -> None:
        """Wait until this node is the active controller and has other brokers to watch."""
        while not self.is_active or len(self.state.image.brokers) < 2:
            await self._news.wait()

    async def _say_nothing(self) -> None:
        """Append NoOpRecords at equal intervals, as Kafka does: followers see that time passes."""
        while True:
            interval = self.state.config.metadata_max_idle_interval_ms / 1000
            if not self.is_active or self.is_alone or interval <= 0:
                await self._news.wait()
                continue
            await trio.sleep(interval)
            if self.is_active and not self.is_alone and self._large is None:
                with suppress(errors.NotController):
                    self._append([NoOpRecord()])

    async def _try(self, decide: "Decide[None, bool]") -> None:
        """Run one of the controller's own deciders until it reports that nothing is left."""
        try:
            while await self.call(decide, None):
                pass
        except errors.NotController:
            pass
