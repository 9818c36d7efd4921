"""Members of a share group (KIP-932): they join, fetch, acknowledge, crash, pause, lie, reconnect.

Each member has one connection to each broker that it fetches from, with a share session. It
acknowledges what it got with its next fetch or by a request of its own, in batches or record by
record; some records it keeps until their lock has ended. :mod:`simulation.replication.sharing.book`
has the rules for what the leaders answer. Invariants 70 and 74 are checked with each heartbeat: an
epoch never goes back, no member is removed before its session ends, and heartbeats of epochs that
were never given are rejected.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, cast

import attrs
import trio

from kwire import errors
from kwire.codec.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from kwire.codec.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.net.connection_pool import OutOfReach
from simulation.replication.checks import TOPIC
from simulation.replication.clients import Answered, SimClient
from simulation.replication.history import demand
from simulation.replication.sharing.book import (
    ACCEPT,
    GAP,
    GROUP,
    LOCK_S,
    REJECT,
    RELEASE,
    RENEW,
    Ask,
    ShareBook,
    offsets_of,
)
from simulation.replication.sharing.links import MemberConnection
from simulation.replication.sharing.requests import (
    Answer,
    Batches,
    Held,
    acknowledge_topic,
    acquired_of,
    code_of,
    fetch_topic,
    kinds_of,
    renews,
)

SESSION_S: Final = 6.0
_BEAT_S: Final = 1.0
_TIMEOUT_S: Final = 3.0
"""The time after which a member closes a connection on which no response arrives."""
_LEAVE: Final = -1
_NEW: Final = 0
"""The epoch of a member that has not joined, and of a session that has not begun."""
_FINAL: Final = -1
"""The epoch that ends a session."""
_VERSION: Final = 2
_NO_MEMBER: Final = frozenset({errors.UnknownMemberId.code, errors.FencedMemberEpoch.code})
"""The error codes after which a member rejoins."""
_LIE: Final = 1_000
"""The number that a lying member adds to an epoch, which no epoch reaches."""


@attrs.define(eq=False)
class Session:
    """A member's session with one broker."""

    connection: MemberConnection
    epoch: int = _NEW
    partitions: set[int] = attrs.field(factory=set)
    batches: list[Held] = attrs.field(factory=list)
    """The acquired batches that the member has not acknowledged."""


@attrs.define(eq=False)
class Membership(SimClient):
    """The membership of a client in the group, which heartbeats keep."""

    book: ShareBook
    is_ending: bool = False
    """True once the member must stay in the group, and accepts everything."""
    member_id: str = ""
    epoch: int = _NEW
    target: frozenset[int] = frozenset()
    _is_sure: bool = False
    """True if the last heartbeat had a response of the group's coordinator."""
    _safe_until: float = 0.0
    """The earliest time at which the member may be removed from the group."""
    _beat_at: float = 0.0

    def _begin(self, member_id: str) -> None:
        """Become another member, which has not joined yet."""
        self.member_id = member_id
        self.epoch, self.target, self._is_sure = _NEW, frozenset(), False

    async def _beat(self) -> None:
        sent_at = trio.current_time()
        self._beat_at = sent_at + _BEAT_S * self.random.uniform(0.5, 1)
        was_sure, self._is_sure = self._is_sure, False
        answer, is_current = await self._heartbeat(self.epoch, is_full=not was_sure)
        if answer is None:
            return
        if answer.error_code in _NO_MEMBER:
            demand(
                not (was_sure and is_current) or trio.current_time() >= self._safe_until,
                f"{self.member_id} is fenced at epoch {self.epoch} before its session ends",
            )
            self.epoch, self.target = _NEW, frozenset()
        if answer.error_code != errors.NONE:
            return
        demand(
            answer.member_epoch >= self.epoch,
            f"{self.member_id} was at epoch {self.epoch}, is at {answer.member_epoch}",
        )
        self.epoch = answer.member_epoch
        if is_current:
            self._is_sure, self._safe_until = True, sent_at + SESSION_S
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self.target = frozenset(p for topic in topics for p in topic.partitions)

    async def _heartbeat(self, epoch: int, *, is_full: bool) -> Answered:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            subscribed_topic_names=[TOPIC] if is_full or epoch == _NEW else None,
        )
        return await self.call_coordinator(GROUP, request, version=1)


@attrs.define(eq=False)
class ShareMember(Membership):
    """One member, which sometimes crashes, leaves, pauses, reconnects, or lies."""

    _sessions: dict[int, Session] = attrs.field(factory=dict)
    """By broker."""
    _count: int = 0

    async def run(self) -> None:
        while True:
            self._count += 1
            self._begin(f"s{-self.id}-{self._count}")
            await self._work()
            self.book.on_left(self.member_id)

    async def _work(self) -> None:
        """Send heartbeats, fetch and acknowledge until the membership ends."""
        while True:
            await trio.sleep(self.random.uniform(0.05, 0.4))
            if self.world.books.failures:
                raise self.world.books.failures[0]
            if trio.current_time() >= self._beat_at:
                await self._beat()
                continue
            dice = self.random.random()
            if dice < 0.04 and not self.is_ending:
                if await self._go_away():
                    return
            elif dice < 0.08:
                await self._lie()
            elif dice < 0.11 and not self.is_ending:
                await self._disconnect(self._any_node())
            elif dice < 0.30:
                await self._acknowledge(self._any_node())
            elif self.target:
                await self._fetch()

    # -- the group

    async def _go_away(self) -> bool:
        """Leave, crash, or pause beyond locks and sessions; return whether the member is gone."""
        dice = self.random.random()
        if dice < 0.3:
            for node in list(self._sessions):
                await self._end_session(node)
            await self._heartbeat(_LEAVE, is_full=False)
        if dice < 0.6:
            for node in list(self._sessions):
                await self._disconnect(node)
            await trio.sleep(self.random.uniform(0, LOCK_S))
            return True
        await trio.sleep(self.random.uniform(0.5, 2.5) * LOCK_S)
        return False

    async def _lie(self) -> None:
        """Claim an epoch or records that are not the member's; nothing must be accepted."""
        session = self._sessions.get(self._any_node())
        if self.epoch != _NEW and self.random.random() < 0.3:
            answer, _ = await self._heartbeat(self.epoch + _LIE, is_full=False)
            if answer is not None:
                demand(answer.error_code != errors.NONE, f"epoch {self.epoch + _LIE} is accepted")
        elif session is not None and session.epoch != _NEW and self.target:
            if self.random.random() < 0.3:
                epoch = session.epoch + _LIE
                request = ShareFetchRequest(
                    group_id=GROUP,
                    member_id=self.member_id,
                    share_session_epoch=epoch,
                    max_wait_ms=0,
                    min_bytes=0,
                    max_records=1,
                    batch_size=1,
                )
                fetched = await self._ask(session, request, ())
                if isinstance(fetched, ShareFetchResponse):
                    demand(fetched.error_code != errors.NONE, f"session epoch {epoch} is accepted")
                return
            index = self.random.choice(sorted(self.target))
            offsets = sorted(self.book.records[index])[-30:]
            if offsets:
                offset = self.random.choice(offsets)
                await self._send_acknowledgements(session, {index: [(offset, offset, [ACCEPT])]})

    # -- sessions

    def _any_node(self) -> int:
        return self.random.choice(sorted(self._sessions)) if self._sessions else -1

    async def _disconnect(self, node: int) -> None:
        """Close a connection; the broker may then release what the member holds."""
        session = self._sessions.pop(node, None)
        if session is not None:
            self.book.on_left(self.member_id, node)
            await session.connection.close()

    async def _end_session(self, node: int) -> None:
        """End a session by a request, sometimes with the last acknowledgements."""
        session = self._sessions.pop(node)
        if session.epoch != _NEW:
            session.epoch = _FINAL
            await self._send_acknowledgements(session, self._choose(session))
        self.book.on_left(self.member_id, node)
        await session.connection.close()

    async def _ask(
        self,
        session: Session,
        request: "ShareFetchRequest | ShareAcknowledgeRequest",
        asks: Sequence[Ask],
    ) -> Answer | None:
        """Send a request of a session; return the response, or None without one.

        A session whose broker does not answer ends, as does one that the broker does not know.
        """
        connection, sent_at = session.connection, trio.current_time()
        witness = partial(self._on_made, connection, asks, sent_at)
        try:
            answer = cast("Answer", await connection.call(request, _VERSION, witness))
        except OutOfReach:
            await self._disconnect(connection.node)
            return None
        if self.world.books.failures:
            raise self.world.books.failures[0]
        for ask in asks:
            code = code_of(answer, ask.index)
            if code is not None:
                self.book.on_arrived(ask, code)
        return answer

    def _on_made(
        self,
        connection: MemberConnection,
        asks: Sequence[Ask],
        sent_at: float,
        answer: Answer | None,
    ) -> None:
        """Check a response when the broker has made it."""
        if answer is None:
            self.book.lost_count += 1
            return
        try:
            for ask in asks:
                code = code_of(answer, ask.index)
                if code is not None:
                    self.book.on_answered(ask, connection.node, code)
            for index, acquired, values in acquired_of(answer):
                self.book.on_granted(connection, index, offsets_of(acquired), values, sent_at)
        except AssertionError as failure:
            self.world.books.fail(str(failure))

    # -- fetching

    async def _fetch(self) -> None:
        """Fetch once from a leader of the member's partitions, with acknowledgements."""
        leaders = {index: self.leader_of(TOPIC, index) for index in sorted(self.target)}
        nodes = sorted({node for node in leaders.values() if node is not None})
        image = self.world.image(self.random)
        topic = None if image is None else image.topic(TOPIC)
        if not nodes or topic is None:
            return
        node = self.random.choice(nodes)
        session = self._sessions.get(node)
        if session is None:
            connection = MemberConnection(
                self.world.wire, self.id, node, self.member_id, _TIMEOUT_S
            )
            session = self._sessions[node] = Session(connection)
        own_indexes = {index for index, leader in leaders.items() if leader == node}
        is_new = session.epoch == _NEW
        batches = {} if is_new else self._choose(session)
        is_renewal = renews(batches)
        asks = self._asks(session, batches)
        added = own_indexes if is_new else own_indexes - session.partitions
        forgotten = set() if is_new else session.partitions - own_indexes
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=0 if is_renewal else 300,
            min_bytes=0 if is_renewal else 1,
            max_bytes=0 if is_renewal else self.random.choice((300, 1_000, 5_000)),
            max_records=0 if is_renewal else self.random.choice((1, 5, 30)),
            batch_size=self.random.choice((1, 3, 100)),
            share_acquire_mode=self.random.randrange(2),
            is_renew_ack=is_renewal,
            topics=[fetch_topic(topic.id, added | batches.keys(), batches)],
            forgotten_topics_data=[
                ShareFetchRequest.ForgottenTopic(topic_id=topic.id, partitions=sorted(forgotten))
            ]
            if forgotten
            else [],
        )
        session.partitions = (session.partitions | own_indexes | batches.keys()) - forgotten
        answer = await self._ask(session, request, asks)
        if isinstance(answer, ShareFetchResponse):
            self._take(session, answer)

    def _take(self, session: Session, answer: ShareFetchResponse) -> None:
        """Take the records of a response, and the next epoch of the session."""
        self._advance(session, answer.error_code)
        for index, acquired, values in acquired_of(answer):
            demand(
                not session.connection.was_fenced,
                f"{self.member_id} gets records of a fenced leader",
            )
            for first, last, _ in acquired:
                session.batches = [
                    each
                    for each in session.batches
                    if each.index != index or each.last < first or each.first > last
                ]
                has_record = frozenset(o for o in values if first <= o <= last)
                batch = Held(index, first, last, has_record, trio.current_time())
                session.batches.append(batch)

    def _advance(self, session: Session, code: int) -> None:
        if code == errors.NONE:
            session.epoch += 1
        else:
            session.epoch, session.partitions = _NEW, set()

    # -- acknowledging

    def _choose(self, session: Session) -> Batches:
        """Take some of the records that the member got, and decide what to do with them."""
        chosen: dict[int, list[tuple[int, int, Sequence[int]]]] = {}
        rest: list[Held] = []
        is_renewal = not self.is_ending and self.random.random() < 0.1
        for batch in sorted(session.batches, key=lambda batch: (batch.index, batch.first)):
            is_late = trio.current_time() > batch.arrived_at + LOCK_S
            keeps = 0.1 if is_late else 0.3
            if not self.is_ending and self.random.random() < keeps:
                rest.append(batch)
                continue
            batches = chosen.setdefault(batch.index, [])
            if is_renewal:
                batches.append((batch.first, batch.last, [RENEW]))
                rest.append(batch)
            else:
                batches += self._decide(batch)
        session.batches = rest
        return {index: batches for index, batches in chosen.items() if batches}

    def _decide(self, batch: Held) -> list[tuple[int, int, Sequence[int]]]:
        """Return what the member acknowledges of a batch, as one batch or record by record."""
        first, last = batch.first, batch.last
        if self.is_ending:
            return [(first, last, [ACCEPT])]
        dice = self.random.random()
        if dice < 0.5:
            (kind,) = self.random.choices((ACCEPT, RELEASE, REJECT), (6, 2, 1))
            return [(first, last, [kind])]
        types = [
            self.random.choices((ACCEPT, RELEASE, REJECT), (6, 2, 1))[0]
            if offset in batch.has_record
            else GAP
            for offset in range(first, last + 1)
        ]
        if dice < 0.75:
            return [(first, last, types)]
        singles = [(first + place, first + place, [kind]) for place, kind in enumerate(types)]
        return [each for each in singles if self.random.random() < 0.8]

    def _asks(self, session: Session, batches: Batches) -> list[Ask]:
        """Record the acknowledgements that a request is about to carry."""
        node = session.connection.node
        return [
            self.book.ask(self.member_id, node, index, kinds_of(each))
            for index, each in batches.items()
        ]

    async def _acknowledge(self, node: int) -> None:
        """Acknowledge records by a request of its own."""
        session = self._sessions.get(node)
        if session is not None and session.epoch != _NEW:
            batches = self._choose(session)
            if batches:
                await self._send_acknowledgements(session, batches)

    async def _send_acknowledgements(self, session: Session, batches: Batches) -> None:
        image = self.world.image(self.random)
        topic = None if image is None else image.topic(TOPIC)
        if topic is None:
            return
        asks = self._asks(session, batches)
        if session.epoch == _FINAL:
            self.book.on_left(self.member_id, session.connection.node)
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            is_renew_ack=renews(batches),
            topics=[acknowledge_topic(topic.id, batches)],
        )
        answer = await self._ask(session, request, asks)
        if isinstance(answer, ShareAcknowledgeResponse):
            self._advance(session, answer.error_code)
