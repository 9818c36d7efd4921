"""Fetch sessions (KIP-227): remember a fetcher's partitions, so that it need not repeat them.

Pure state. A full request is answered in full and opens a session. An incremental request changes
the session's partitions; its response contains only changed partitions. Rules, as in Kafka:

* An unknown session, or an epoch that is not the session's next one, fails the whole request; the
  fetcher starts over with a full request.
* Partitions that just returned records move to the end of the order, so that no partition starves.
* A request visits only unsettled partitions, so the cost of a fetch grows with the partitions that
  changed, not with those in the session. A few settled partitions are visited in turn, at most ten
  times a second, so that an unreported change is noticed eventually.
* When all slots are taken, a new session replaces a session that was idle for longer than
  ``eviction_s``, or a session of lower rank: a follower's session replaces a consumer's, and a
  larger session replaces a smaller one that is older than ``eviction_s``.
"""

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from kwire.drive import run_steps
from kwire.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch

if TYPE_CHECKING:
    from kwire.replica.partition import ReadResult

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 0x7FFFFFFF
_SCANNED: Final = 4
"""The number of partitions that are visited in turn, even if they are settled."""
_SCAN_INTERVAL_S: Final = 0.1
"""The shortest time from one such visit to the next; so frequent requests make few of them."""

_STEP: Final = 64
"""The number of results that are compared between two pauses."""

Ref = tuple[bytes | str, int]
"""A partition as requested: by topic id, or by name if the request has no ids."""
Pair: TypeAlias = "tuple[FetchPartition, ReadResult]"
"""A partition and its result."""


@attrs.define(eq=False, repr=False)
class FetchPartition:
    """One partition of a fetch; in a session, it also holds the offsets sent last."""

    topic: str
    topic_id: bytes
    partition: int
    fetch_offset: int
    max_bytes: int
    leader_epoch: int
    """The leader epoch that the fetcher knows, -1 if it sent none."""
    last_fetched_epoch: int
    log_start: int
    ref: Ref
    known_high_watermark: int = -1
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    is_settled: bool = False
    """True if a visit would find nothing new: nothing to read, and no change since."""


@attrs.define(eq=False, repr=False)
class Session:
    """One fetcher's partitions."""

    id: int
    privileged: bool
    by_id: bool
    epoch: int
    created_at: float
    used_at: float
    partitions: dict[Ref, FetchPartition]
    unsettled: dict[Ref, FetchPartition]
    """The partitions that the next request visits, in the order in which they are served."""
    scanned_at: float
    """The time when settled partitions were last visited."""

    def mark(self, ref: Ref) -> bool:
        """Make the next request visit a partition; return whether the partition was settled."""
        partition = self.partitions.get(ref)
        if partition is None:
            return False
        was_settled, partition.is_settled = partition.is_settled, False
        self.unsettled.setdefault(ref, partition)
        return was_settled

    def take(self, now: float) -> list[FetchPartition]:
        """Return the partitions to visit, and clear the list; later changes go to the next request.

        From time to time, these include a few settled partitions.
        """
        if now - self.scanned_at >= _SCAN_INTERVAL_S:
            self.scanned_at = now
            for ref in list(islice(self.partitions, _SCANNED)):
                partition = self.partitions[ref] = self.partitions.pop(ref)
                self.unsettled.setdefault(ref, partition)
        visited, self.unsettled = list(self.unsettled.values()), {}
        return visited

    def update(self, partitions: Iterable[FetchPartition], removals: Iterable[Ref]) -> None:
        """Add or replace partitions, then remove some."""
        current = self.partitions
        for new in partitions:
            ref = new.ref
            old = current.get(ref)
            if old is not None:
                new.sent_high_watermark = old.sent_high_watermark
                new.sent_log_start = old.sent_log_start
            current[ref] = self.unsettled[ref] = new
        for ref in removals:
            current.pop(ref, None)
            self.unsettled.pop(ref, None)

    def put_back(self, visited: Iterable[FetchPartition], with_records: Iterable[Ref] = ()) -> None:
        """Visit unsettled partitions again with the next request, those with records last."""
        changed, self.unsettled = self.unsettled, {}
        for partition in visited:
            if not partition.is_settled:
                self.unsettled[partition.ref] = partition
        self.unsettled.update(changed)
        for ref in with_records:
            if ref in self.unsettled:
                self.unsettled[ref] = self.unsettled.pop(ref)


@attrs.define(eq=False, repr=False)
class FetchContext:
    """One request in its session: the partitions to read and then to answer for."""

    partitions: list[FetchPartition]
    session: Session | None = None
    """The session of an incremental request."""
    opens: bool = False
    by_id: bool = False
    """True if a session that the request opens identifies topics by their ids."""
    privileged: bool = False

    def add_changed(self) -> list[FetchPartition]:
        """Add the session's partitions that have changed since the request took its partitions.

        Return all changed partitions, including those that the request has already.
        """
        if self.session is None:
            return []
        own = {partition.ref: partition for partition in self.partitions}
        changed, self.session.unsettled = self.session.unsettled, {}
        self.partitions += [p for ref, p in changed.items() if ref not in own]
        return [own.get(ref, p) for ref, p in changed.items()]

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.id


@attrs.define(eq=False, repr=False)
class FetchSessions:
    """All sessions of a broker."""

    slots: int
    eviction_s: float
    new_id: Callable[[], int]
    """Returns a random positive number; called again while the number is in use."""
    on_end: Callable[[Session], None] = lambda _: None
    """Called with each session that has ended."""
    _sessions: dict[int, Session] = attrs.Factory(dict)
    """Sessions by id, least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        *,
        session_id: int,
        epoch: int,
        by_id: bool,
        partitions: list[FetchPartition],
        removals: list[Ref],
        privileged: bool,
        now: float,
    ) -> FetchContext:
        """Return the partitions to read; raises errors that fail the whole request.

        ``by_id``: True if the request's version identifies topics by their ids.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(session_id)
            opens = epoch != FINAL_EPOCH
            return FetchContext(partitions, None, opens, by_id, privileged)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound
        if session.epoch != epoch:
            raise InvalidFetchSessionEpoch
        if by_id != session.by_id:
            raise FetchSessionTopicIdError
        if partitions or removals:
            session.update(partitions, removals)
        if not session.partitions:
            self._end(session_id)
            return FetchContext([])
        del self._sessions[session_id]
        session.used_at = now
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._sessions[session_id] = session
        return FetchContext(session.take(now), session)

    def cancel(self, context: FetchContext) -> None:
        """End a request without a response."""
        if context.session is not None:
            context.session.put_back(context.partitions)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.on_end(session)

    def finish(
        self, context: FetchContext, results: "list[ReadResult]", now: float
    ) -> tuple[int, list[Pair]]:
        """Return the result of :meth:`finishing`, run without pauses."""
        return run_steps(self.finishing(context, results, now))

    def finishing(
        self, context: FetchContext, results: "list[ReadResult]", now: float
    ) -> Generator[None, None, tuple[int, list[Pair]]]:
        """Return the session id for the response, and what to send of each partition.

        ``results`` are in the order of ``context.partitions``. The generator pauses between
        results; a new session begins with the last step.
        """
        session = context.session
        pairs = list(zip(context.partitions, results, strict=True))
        if session is None:
            session_id = NO_SESSION
            if context.opens:
                session_id = yield from self._opening(context, pairs, now)
            return session_id, pairs
        sent: list[Pair] = []
        with_records: list[Ref] = []
        for first in range(0, len(pairs), _STEP):
            if first:
                yield
            _add_changed(pairs[first : first + _STEP], sent, with_records)
        session.put_back(context.partitions, with_records)
        return session.id, sent

    def _opening(
        self, context: FetchContext, pairs: list[Pair], now: float
    ) -> Generator[None, None, int]:
        partitions: dict[Ref, FetchPartition] = {}
        for partition, result in pairs:
            _record_sent(partition, result)
            partitions[partition.ref] = partition
            yield
        if len(self._sessions) >= self.slots and not self._evict(context, now):
            return NO_SESSION
        session_id = self.new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self.new_id()
        self._sessions[session_id] = Session(
            id=session_id,
            privileged=context.privileged,
            by_id=context.by_id,
            epoch=INITIAL_EPOCH + 1,
            created_at=now,
            used_at=now,
            partitions=partitions,
            unsettled=dict(partitions),
            scanned_at=now,
        )
        return session_id

    def _evict(self, context: FetchContext, now: float) -> bool:
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.used_at > self.eviction_s:
            self._end(oldest.id)
            return True
        victim = min(
            (s for s in self._sessions.values() if self._may_evict(s, context, now)),
            key=lambda session: (session.privileged, len(session.partitions)),
            default=None,
        )
        if victim is None or (context.privileged, len(context.partitions)) < (
            victim.privileged,
            len(victim.partitions),
        ):
            return False
        self._end(victim.id)
        return True

    def _may_evict(self, session: Session, context: FetchContext, now: float) -> bool:
        if context.privileged and not session.privileged:
            return True
        return now - session.created_at > self.eviction_s


def _add_changed(pairs: list[Pair], sent: list[Pair], with_records: list[Ref]) -> None:
    """Add the fields that differ from the partition's last response, so they must be sent."""
    for each in pairs:
        partition, result = each
        if result.records is not None:
            with_records.append(partition.ref)
        elif (
            result.high_watermark == partition.sent_high_watermark
            and result.log_start == partition.sent_log_start
            and result.error is None
            and result.preferred_replica < 0
            and result.diverging is None
        ):
            continue
        sent.append(each)
        _record_sent(partition, result)


def _record_sent(partition: FetchPartition, result: "ReadResult") -> None:
    """Record the offsets sent; after an error, the high watermark counts as unsent.

    So the first result after the error is always sent.
    """
    partition.sent_high_watermark = -1 if result.error is not None else result.high_watermark
    partition.sent_log_start = result.log_start
