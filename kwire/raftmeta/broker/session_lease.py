"""The time until which a broker's leaderships are its own, whatever it has not yet learned.

A controller fences a broker whose session has ended and gives its leaderships away. A broker that
was paused or cut off for that long must neither acknowledge nor serve as a leader when it goes on
(invariant 34), although its metadata still say that it leads. Rules:

* A heartbeat that was answered as unfenced proves that the session holds for the session's length
  after the heartbeat was *sent*: the controller received it later.
* While the lease is over, only an answer that no fencing can hide behind renews it: see
  :meth:`SessionLease.may_unfence`.
* If the processes of too many controllers have ended for one of them to be active, none can have
  fenced the broker since, and the next active controller begins with a whole session for it. So a
  lease that holds at that moment is renewed, and brokers serve on without controllers. The proof is
  that hosts refuse connections, which a firewall may do for a controller that runs: so the lease
  ends at the latest :data:`WITHOUT_CONTROLLERS_MAX_S` after the last answered heartbeat was sent.
* Without other nodes that could be the active controller, the lease has no end.
"""

import math
from typing import Final

from kwire import attrs

WITHOUT_CONTROLLERS_MAX_S: Final = 600.0
"""The longest time for which a broker serves without an answer from a controller."""


@attrs.define
class SessionLease:
    """The lease of one broker; requests compare the time with ``end``."""

    timeout_s: float
    """``broker.session.timeout.ms``, which all nodes are to have alike."""
    end: float = math.inf
    """The time at which it ends; infinite before the first heartbeat was answered."""
    _renewed_at: float | None = attrs.field(init=False, default=None)
    """The time at which the last answered heartbeat was sent."""
    _past_over_s: float = attrs.field(init=False, default=0.0)
    """The seconds for which it was over before it was renewed."""

    def is_over(self, now: float) -> bool:
        return now >= self.end

    def over_s(self, now: float) -> float:
        """Return the seconds for which the lease has been over so far, in all."""
        return self._past_over_s + max(0.0, now - self.end)

    def renew(self, sent_at: float, now: float) -> None:
        """A heartbeat of the first time has been answered: the broker is not fenced."""
        self._past_over_s = self.over_s(now)
        self.end, self._renewed_at = sent_at + self.timeout_s, sent_at

    def keep(self, now: float) -> None:
        """No other node can be the active controller."""
        self._past_over_s = self.over_s(now)
        self.end, self._renewed_at = math.inf, None

    def on_controllers_ended(self, asked_at: float, now: float) -> None:
        """No active controller existed at some time between these two."""
        if self.is_over(now):
            return
        if self._renewed_at is None:
            self._renewed_at = asked_at
        last_end = max(self.end, self._renewed_at + WITHOUT_CONTROLLERS_MAX_S)
        self.end = min(asked_at + self.timeout_s, last_end)

    def may_unfence(self, now: float, *, knows_fencing: bool) -> bool:
        """Whether a heartbeat may unfence the broker now.

        If it did so while the broker does not know that it was fenced (``knows_fencing``), the
        answer would look as if the session had held all the time.
        """
        return knows_fencing or not self.is_over(now)
