"""The lease that limits how long a broker may act as leader while its metadata may be outdated.

When a broker's session ends, the controller fences the broker and elects other leaders. A broker
that was paused or cut off for that long must neither acknowledge writes nor serve reads as a leader
when it resumes (invariant 34), although its own metadata still names it as leader. Rules:

* An answer that says "unfenced" proves that the session holds for one session timeout from the time
  the heartbeat was *sent*, because the controller received it later than that.
* Once the lease is over, only an answer that rules out an unnoticed fencing renews it: see
  :meth:`SessionLease.may_unfence` and :meth:`SessionLease.on_unfenced`.
* If too many controller processes have ended for one to become active, and each of the others
  answers that it does not lead, no controller can have fenced the broker since, and the next active
  controller gives the broker a whole new session. So a lease that holds at that moment is renewed,
  and brokers keep serving without controllers. A controller that still leads may get its followers
  back and continue with the sessions that it remembers, so nothing is proved while a controller
  claims to lead, or is silent. The evidence is that hosts refuse connections, which a firewall can
  also do for a running controller. The lease therefore ends at the latest
  :data:`WITHOUT_CONTROLLERS_MAX_S` after the last answered heartbeat was sent.
* The lease keeps running while the machine is suspended, although the clock of deadlines stops.
* The lease never ends if no other node could be the active controller.
"""

import math
from collections.abc import Callable
from typing import Final

import attrs

WITHOUT_CONTROLLERS_MAX_S: Final = 60.0
"""The longest time for which a broker serves without an answer from a controller. It is long enough
to restart all controllers, but short, because a firewall can make running controllers look stopped.
"""

SUSPENSION_MIN_S: Final = 0.01


def _suspension(before_s: float, after_s: float) -> float:
    """Return the seconds of suspension between two readings, which vary by microseconds."""
    suspension_s = after_s - before_s
    return suspension_s if suspension_s > SUSPENSION_MIN_S else 0.0


def _never_suspended() -> float:
    return 0.0


@attrs.define(eq=False, repr=False)
class SessionLease:
    """The lease of one broker; requests compare the time with ``end``."""

    timeout_s: float
    """``broker.session.timeout.ms``, which must be the same on all nodes."""
    suspended_s: Callable[[], float] = _never_suspended
    """Returns the seconds of machine suspension, which ``now`` does not count."""
    end: float = math.inf
    """The time at which the lease ends; infinite until the first heartbeat is answered."""
    _suspended_s: float = attrs.field(init=False, default=0.0)
    """The value of ``suspended_s`` when the request that set ``end`` was sent."""
    _request_suspended_s: float = attrs.field(init=False, default=0.0)
    """The value of ``suspended_s`` at the last :meth:`begin_request`."""
    _renewed_at: float | None = attrs.field(init=False, default=None)
    """The time at which the last answered heartbeat was sent."""
    _past_over_s: float = attrs.field(init=False, default=0.0)
    """The seconds for which the lease was over, up to its last renewal."""

    def begin_request(self) -> None:
        """Record that a request to the controllers is being sent now."""
        self._request_suspended_s = self.suspended_s()

    def is_over(self, now: float) -> bool:
        return self.end != math.inf and now + self._missed_s() >= self.end

    def left_s(self, now: float) -> float:
        """Return the seconds until the lease ends if it is not extended; at least 0."""
        return max(0.0, self.end - now - self._missed_s())

    def over_s(self, now: float) -> float:
        """Return the total seconds for which the lease has been over so far.

        These are seconds of ``now``, which exclude suspensions, so ``now`` minus this value never
        goes backwards.
        """
        return self._past_over_s + max(0.0, now - self.end)

    def _missed_s(self) -> float:
        """Return the seconds of suspension since the request that set ``end`` was sent."""
        return _suspension(self._suspended_s, self.suspended_s())

    def renew(self, sent_at: float, now: float) -> None:
        """Extend the lease to one session timeout after the heartbeat was sent, at ``sent_at``."""
        over_s = self.over_s(now)
        self.end, self._renewed_at = sent_at + self.timeout_s, sent_at
        self._suspended_s = self._request_suspended_s
        self._past_over_s += over_s - self.over_s(now)  # The answer may arrive after the new end.

    def on_unfenced(self, sent_at: float, now: float, *, knows_fencing: bool) -> None:
        """Renew the lease if an answer that says "unfenced" proves that the session held.

        If the heartbeat was sent while the lease held but the lease is over now, the answer proves
        nothing: the controller may have fenced the broker before it received the heartbeat, which
        then unfenced it. ``knows_fencing``: the broker's metadata showed it as fenced when the
        heartbeat was sent.
        """
        missed_s = _suspension(self._suspended_s, self._request_suspended_s)
        was_over = sent_at + missed_s >= self.end  # A suspension after that time is ignored.
        if knows_fencing or was_over or not self.is_over(now):
            self.renew(sent_at, now)

    def keep(self, now: float) -> None:
        """Make the lease endless, because no other node can be the active controller."""
        self._past_over_s = self.over_s(now)
        self.end, self._renewed_at = math.inf, None

    def on_controllers_ended(self, asked_at: float, now: float) -> None:
        """Extend the lease: no controller was active at some time in ``[asked_at, now]``."""
        if self.is_over(now):
            return
        passed_s = _suspension(self._suspended_s, self._request_suspended_s)
        renewed_at = asked_at if self._renewed_at is None else self._renewed_at - passed_s
        last_end = max(self.end - passed_s, renewed_at + WITHOUT_CONTROLLERS_MAX_S)
        self.end, self._renewed_at = min(asked_at + self.timeout_s, last_end), renewed_at
        self._suspended_s = self._request_suspended_s

    def may_unfence(self, now: float, *, knows_fencing: bool) -> bool:
        """Return whether a heartbeat sent now may unfence the broker.

        If the broker does not know that it was fenced (``knows_fencing``), an answer that follows
        the unfencing would look as if the session had never ended.
        """
        return knows_fencing or not self.is_over(now)
