"""The active controller's record of the brokers' heartbeats.

Plain data, given ``now``. It is not in the log: a new active controller gives every broker that
is not fenced a whole session in which to send a heartbeat.
"""

import math
from collections.abc import Mapping

import attrs

from kwire.raftmeta.metadata.image import BrokerImage


@attrs.define
class BrokerSession:
    """The time of a broker's last heartbeat, and what it reported."""

    heartbeat_at: float
    metadata_offset: int = -1
    """The last offset that the broker reported as applied."""
    fenced: bool = True
    shutdown_offset: int = -1
    """The offset that all other brokers must reach before a stopping broker may go."""


@attrs.define
class BrokerSessions:
    """Sessions by broker id."""

    timeout_s: float = 9.0
    _sessions: dict[int, BrokerSession] = attrs.field(factory=dict)

    def touch(self, broker_id: int, now: float, *, fenced: bool, metadata_offset: int) -> None:
        """Record a heartbeat or registration of a broker."""
        session = self._sessions.setdefault(broker_id, BrokerSession(now))
        session.heartbeat_at = now
        session.fenced = fenced
        session.metadata_offset = metadata_offset

    def get(self, broker_id: int) -> BrokerSession | None:
        return self._sessions.get(broker_id)

    def forget(self, broker_id: int) -> None:
        """Remove the session of a broker whose incarnation has ended."""
        self._sessions.pop(broker_id, None)

    def follow(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Take from the image which brokers are fenced."""
        for broker_id, session in self._sessions.items():
            broker = brokers.get(broker_id)
            session.fenced = broker is None or broker.fenced

    def clear(self) -> None:
        """Remove all sessions: leadership ended."""
        self._sessions.clear()

    def is_valid(self, broker_id: int, now: float) -> bool:
        """Whether a broker may still be alive."""
        session = self._sessions.get(broker_id)
        return session is not None and now < session.heartbeat_at + self.timeout_s

    def stale(self, now: float) -> list[int]:
        """Return the brokers that are not fenced and whose session ended, the earliest first."""
        overdue = [
            (session.heartbeat_at, broker_id)
            for broker_id, session in self._sessions.items()
            if not session.fenced and now >= session.heartbeat_at + self.timeout_s
        ]
        return [broker_id for _, broker_id in sorted(overdue)]

    @property
    def deadline(self) -> float:
        """The time at which the next session ends if no heartbeat comes."""
        heartbeats = (s.heartbeat_at for s in self._sessions.values() if not s.fenced)
        return min(heartbeats, default=math.inf) + self.timeout_s

    def lowest_active_offset(self) -> int | None:
        """Return the metadata offset that all serving brokers have reached; None without any."""
        offsets = [
            session.metadata_offset
            for session in self._sessions.values()
            if not session.fenced and session.shutdown_offset < 0
        ]
        return min(offsets, default=None)
