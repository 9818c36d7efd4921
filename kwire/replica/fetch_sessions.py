"""Fetch sessions (KIP-227): a fetcher's partitions, kept so that it need not repeat them.

Pure state. A full request is answered in full and opens a session. An incremental one changes the
session's partitions; its answer holds only those with a change. Rules, as Kafka's:

* An unknown session, or an epoch that is not the session's next one, is an error of the whole
  request; the fetcher starts over with a full one.
* Partitions that just gave records move to the end of the order, so that none is starved.
* When all slots are taken a new session replaces one idle for longer than ``eviction_s``, or one
  of lower rank: a follower's replaces a consumer's, a larger one a smaller one that is not new.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

import attrs

from kwire.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 0x7FFFFFFF

Ref = tuple[bytes | str, int]
"""A partition as requested: by topic id, or by name if the request has no ids."""


@attrs.define(eq=False)
class Asked:
    """One partition of a fetch; in a session it also holds the last answer's offsets."""

    topic: str
    topic_id: bytes
    partition: int
    fetch_offset: int
    max_bytes: int
    leader_epoch: int
    """The leader epoch that the fetcher knows, -1 if it sent none."""
    last_fetched_epoch: int
    log_start: int
    by_id: bool
    known_high_watermark: int = -1
    sent_high_watermark: int = -1
    sent_log_start: int = -1

    @property
    def ref(self) -> Ref:
        return (self.topic_id if self.by_id else self.topic), self.partition


class Answered(Protocol):
    """The fields of a partition's answer that a session reads."""

    error_code: int
    high_watermark: int
    log_start_offset: int
    preferred_read_replica: int

    @property
    def records(self) -> object: ...


A = TypeVar("A", bound=Answered)


@attrs.define(eq=False)
class Session:
    """One fetcher's partitions, in the order in which they are served."""

    id: int
    privileged: bool
    by_id: bool
    epoch: int
    created_at: float
    used_at: float
    partitions: dict[Ref, Asked]

    def update(self, asked: Iterable[Asked], forgotten: Iterable[Ref]) -> None:
        partitions = self.partitions
        for new in asked:
            old = partitions.get(new.ref)
            if old is not None:
                new.sent_high_watermark = old.sent_high_watermark
                new.sent_log_start = old.sent_log_start
            partitions[new.ref] = new
        for ref in forgotten:
            partitions.pop(ref, None)


@attrs.define(eq=False)
class Turn:
    """One request in its session: its partitions to read, then to answer."""

    partitions: list[Asked]
    session: Session | None = None
    """The session of an incremental request."""
    opens: bool = False
    privileged: bool = False

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.id


@attrs.define
class FetchSessions:
    """All sessions of a broker."""

    slots: int
    eviction_s: float
    new_id: Callable[[], int]
    """Returns a random positive number; called again while the number is in use."""
    _sessions: dict[int, Session] = attrs.Factory(dict)
    """Sessions by id, least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        *,
        session_id: int,
        epoch: int,
        asked: list[Asked],
        forgotten: list[Ref],
        privileged: bool,
        now: float,
    ) -> Turn:
        """Return the partitions to read for a request; raises an error of the whole request."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            return Turn(asked, opens=epoch != FINAL_EPOCH, privileged=privileged)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound
        if session.epoch != epoch:
            raise InvalidFetchSessionEpoch
        if asked and asked[0].by_id != session.by_id:
            raise FetchSessionTopicIdError
        if asked or forgotten:
            session.update(asked, forgotten)
        del self._sessions[session_id]
        if not session.partitions:
            return Turn([])
        session.used_at = now
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._sessions[session_id] = session
        return Turn(list(session.partitions.values()), session)

    def finish(self, turn: Turn, answers: list[A], now: float) -> tuple[int, list[tuple[Asked, A]]]:
        """Return the session id to answer with, and the partitions' answers to send.

        ``answers`` have the order of ``turn.partitions``.
        """
        session = turn.session
        pairs = list(zip(turn.partitions, answers, strict=True))
        if session is None:
            return (self._open(turn, pairs, now) if turn.opens else NO_SESSION), pairs
        sent = []
        several = len(pairs) > 1
        for pair in pairs:
            asked, answer = pair
            if not _news(asked, answer):
                continue
            sent.append(pair)
            _remember(asked, answer)
            if several and answer.records:
                ref = asked.ref
                if session.partitions.pop(ref, None) is not None:
                    session.partitions[ref] = asked
        return session.id, sent

    def _open(self, turn: Turn, pairs: list[tuple[Asked, A]], now: float) -> int:
        if len(self._sessions) >= self.slots and not self._evict(turn, now):
            return NO_SESSION
        for asked, answer in pairs:
            _remember(asked, answer)
        number = self.new_id()
        while number in self._sessions or number == NO_SESSION:
            number = self.new_id()
        self._sessions[number] = Session(
            id=number,
            privileged=turn.privileged,
            by_id=bool(turn.partitions) and turn.partitions[0].by_id,
            epoch=INITIAL_EPOCH + 1,
            created_at=now,
            used_at=now,
            partitions={asked.ref: asked for asked in turn.partitions},
        )
        return number

    def _evict(self, turn: Turn, now: float) -> bool:
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.used_at > self.eviction_s:
            del self._sessions[oldest.id]
            return True
        victim = min(
            (s for s in self._sessions.values() if self._may_go(s, turn, now)),
            key=lambda session: (session.privileged, len(session.partitions)),
            default=None,
        )
        if victim is None or (turn.privileged, len(turn.partitions)) < (
            victim.privileged,
            len(victim.partitions),
        ):
            return False
        del self._sessions[victim.id]
        return True

    def _may_go(self, session: Session, turn: Turn, now: float) -> bool:
        if turn.privileged and not session.privileged:
            return True
        return now - session.created_at > self.eviction_s


def _news(asked: Asked, answer: Answered) -> bool:
    """Whether an answer differs from the partition's last one, so that it must be sent."""
    return bool(
        answer.records
        or answer.high_watermark != asked.sent_high_watermark
        or answer.log_start_offset != asked.sent_log_start
        or answer.error_code
        or answer.preferred_read_replica >= 0
        or getattr(getattr(answer, "diverging_epoch", None), "end_offset", -1) >= 0
    )


def _remember(asked: Asked, answer: Answered) -> None:
    """Record the offsets sent; after an error the high watermark counts as unsent.

    So the first answer after the error is sent again.
    """
    asked.sent_high_watermark = -1 if answer.error_code else answer.high_watermark
    asked.sent_log_start = answer.log_start_offset
