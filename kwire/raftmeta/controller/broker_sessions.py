"""The active controller's record of the brokers' heartbeats.

Plain data; ``now`` is passed in. The record is not in the log: a new active controller gives every
unfenced broker a whole session in which to send a heartbeat. A fenced broker may have been fenced
before its session ended, so it counts as fenced early for as long as that session could have
lasted.
"""

import math
from collections.abc import Iterable

import attrs


@attrs.define(repr=False)
class BrokerSession:
    """The time of a broker's last heartbeat, and what it reported."""

    heartbeat_at: float
    metadata_offset: int = -1
    """The last offset that the broker reported as applied."""
    fenced: bool = True
    shutdown_offset: int = -1
    """The offset that all other brokers must reach before a stopping broker may stop."""
    request_at: float = -math.inf
    """The time of the broker's last request to this controller."""
    has_ended_early: bool = False
    """True if the broker was fenced because its process ended, before this session's end."""
    failed_dirs: frozenset[bytes] = frozenset()
    """The directories that have failed since the broker started; every heartbeat lists them."""
    is_inherited: bool = False
    """True if a former controller fenced the broker, which has been silent since."""


@attrs.define(repr=False)
class BrokerSessions:
    """Sessions by broker id."""

    timeout_s: float = 9.0
    _sessions: dict[int, BrokerSession] = attrs.field(factory=dict)
    _early_ends: dict[int, float] = attrs.field(factory=dict)
    """For each broker that was fenced early, the time at which its session would have ended.

    Kept when the broker registers again, because its new process may also end before it serves.
    """

    def touch(
        self,
        broker_id: int,
        now: float,
        *,
        fenced: bool,
        metadata_offset: int,
        failed_dirs: Iterable[bytes] = (),
    ) -> None:
        """Record a heartbeat or registration of a broker."""
        session = self._sessions.setdefault(broker_id, BrokerSession(now))
        session.heartbeat_at = session.request_at = now
        session.fenced, session.has_ended_early, session.is_inherited = fenced, False, False
        session.metadata_offset = metadata_offset
        session.failed_dirs = session.failed_dirs.union(failed_dirs)
        if not fenced:
            self._early_ends.pop(broker_id, None)

    def begin(self, broker_id: int, now: float) -> None:
        """Begin the session of a serving broker that has sent nothing to this controller yet."""
        self._sessions[broker_id] = BrokerSession(now, fenced=False)

    def begin_fenced(self, broker_id: int, now: float) -> None:
        """Treat a broker fenced by a former controller as fenced early, for one session."""
        self._sessions[broker_id] = BrokerSession(now, has_ended_early=True, is_inherited=True)
        self._early_ends[broker_id] = now + self.timeout_s

    def end_early(self, broker_id: int) -> None:
        """Mark a broker whose process has ended as fenced; its session's end is still tracked."""
        session = self._sessions[broker_id]
        session.fenced = session.has_ended_early = True
        self._early_ends[broker_id] = session.heartbeat_at + self.timeout_s

    def has_ended_early(self, broker_id: int, now: float) -> bool:
        """True if a broker was fenced early and its session would still be running."""
        return now < self._early_ends.get(broker_id, -math.inf)

    def has_passed_early_ends(self, now: float) -> bool:
        """True if sessions that were cut short would have ended by now."""
        return any(now >= end_at for end_at in self._early_ends.values())

    def drop_early_ends(self, now: float) -> None:
        """Forget the early ends whose sessions would have ended by now."""
        self._early_ends = {key: end for key, end in self._early_ends.items() if now < end}

    def may_have_failed(self, broker_id: int, directory: bytes) -> bool:
        """Return whether a broker's directory has failed, or the broker has not been heard yet."""
        session = self._sessions.get(broker_id)
        if session is None or session.request_at == -math.inf:
            return True
        return directory in session.failed_dirs

    def count_ended_early(self, now: float) -> int:
        """Return the number of brokers that are fenced although their sessions have not ended."""
        return sum(
            session.has_ended_early and now < session.heartbeat_at + self.timeout_s
            for session in self._sessions.values()
        )

    def get(self, broker_id: int) -> BrokerSession | None:
        return self._sessions.get(broker_id)

    def on_fenced(self, broker_id: int) -> None:
        """Mark a broker as fenced, because its session has ended."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.fenced = True

    def wait_for_others(self, broker_id: int, offset: int) -> None:
        """Let a stopping broker stop once all other brokers have reached ``offset``."""
        self._sessions[broker_id].shutdown_offset = offset

    def forget(self, broker_id: int) -> None:
        """Remove the session of a broker whose incarnation has ended."""
        self._sessions.pop(broker_id, None)

    def clear(self) -> None:
        """Remove all sessions, because leadership ended."""
        self._sessions.clear()
        self._early_ends.clear()

    def is_valid(self, broker_id: int, now: float) -> bool:
        """Return whether a broker may still be alive."""
        session = self._sessions.get(broker_id)
        if session is None or session.is_inherited:
            return False
        return now < session.heartbeat_at + self.timeout_s

    def stale(self, now: float) -> list[int]:
        """Return the serving brokers whose sessions have ended, the earliest end first."""
        overdue = [
            (session.heartbeat_at, broker_id)
            for broker_id, session in self._sessions.items()
            if not session.fenced and now >= session.heartbeat_at + self.timeout_s
        ]
        return [broker_id for _, broker_id in sorted(overdue)]

    @property
    def deadline(self) -> float:
        """The time at which the next session ends, or would have ended, without a heartbeat."""
        heartbeats = (s.heartbeat_at for s in self._sessions.values() if not s.fenced)
        first_end = min(heartbeats, default=math.inf) + self.timeout_s
        return min(first_end, *self._early_ends.values(), math.inf)

    def lowest_active_offset(self) -> int | None:
        """Return the lowest metadata offset of the serving brokers; None if there are none."""
        offsets = [
            session.metadata_offset
            for session in self._sessions.values()
            if not session.fenced and session.shutdown_offset < 0
        ]
        return min(offsets, default=None)
