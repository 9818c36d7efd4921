"""The share sessions of one broker: the partitions that each member fetches from it (KIP-932).

Epoch 0 begins a session, and replaces the member's earlier one; each later request of the session
has the next epoch; epoch -1 ends it. A session does not hold records: it only saves the member from
listing its partitions in each request. It ends with the member's connection.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

import attrs

from kwire.errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1

Ref: TypeAlias = tuple[bytes, int]
"""The topic id and number of a partition."""


class SessionKey(NamedTuple):
    """The member that a session belongs to."""

    group_id: str
    member_id: str


@attrs.define(eq=False, repr=False)
class ShareSession:
    """The session of one member."""

    key: SessionKey
    epoch: int
    """The epoch of the next request."""
    partitions: dict[Ref, None]
    on_ended: Callable[[], object] = lambda: None
    """Called when the session ends or is replaced."""


@attrs.define(eq=False, repr=False)
class ShareSessions:
    """The sessions of all members that fetch from this broker."""

    _sessions: dict[SessionKey, ShareSession] = attrs.field(factory=dict)
    _counts: Counter[str] = attrs.field(factory=Counter)
    """The number of sessions by group id."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin_fetch(
        self,
        key: SessionKey,
        epoch: int,
        partitions: Iterable[Ref],
        forgotten: Iterable[Ref],
        *,
        acknowledges: bool,
        limit: int,
    ) -> ShareSession | None:
        """Return the session of a ShareFetch; None if the request ends the session.

        ``limit`` is the largest number of sessions on this broker.
        """
        if epoch == FINAL_EPOCH:
            self.find(key)
            return None
        if epoch == FIRST_EPOCH:
            if acknowledges:
                raise InvalidRequest("The first request of a session cannot acknowledge records.")
            self.end(key)
            if len(self._sessions) >= limit:
                raise ShareSessionLimitReached
            session = ShareSession(key, FIRST_EPOCH + 1, dict.fromkeys(partitions))
            self._sessions[key] = session
            self._counts[key.group_id] += 1
            return session
        session = self._next(key, epoch)
        session.partitions.update(dict.fromkeys(partitions))
        for ref in forgotten:
            session.partitions.pop(ref, None)
        return session

    def begin_acknowledge(self, key: SessionKey, epoch: int) -> None:
        """Check the session of a ShareAcknowledge, which cannot begin one."""
        if epoch == FIRST_EPOCH:
            raise InvalidShareSessionEpoch
        if epoch == FINAL_EPOCH:
            self.find(key)
        else:
            self._next(key, epoch)

    def end(self, key: SessionKey) -> list[Ref]:
        """Remove a session, and return its partitions; without a session, there are none."""
        session = self._sessions.pop(key, None)
        if session is None:
            return []
        self._counts[key.group_id] -= 1
        if not self._counts[key.group_id]:
            del self._counts[key.group_id]
        session.on_ended()
        return list(session.partitions)

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session."""
        return group_id in self._counts

    def has(self, session: ShareSession) -> bool:
        """Return whether a session is current: neither ended nor replaced."""
        return self._sessions.get(session.key) is session

    def find(self, key: SessionKey) -> ShareSession:
        """Return a member's session; raises ShareSessionNotFound."""
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFound
        return session

    def _next(self, key: SessionKey, epoch: int) -> ShareSession:
        session = self.find(key)
        if session.epoch != epoch:
            raise InvalidShareSessionEpoch
        session.epoch = FIRST_EPOCH + 1 if epoch == _LAST_EPOCH else epoch + 1
        return session
