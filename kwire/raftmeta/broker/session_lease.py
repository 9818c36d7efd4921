"""The time until which a broker's leaderships are its own, whatever it has not yet learned.

A controller fences a broker whose session has ended and gives its leaderships away. A broker that
was paused or cut off for that long must neither acknowledge nor serve as a leader when it goes on
(invariant 34), although its metadata still say that it leads. Rules:

* A heartbeat that was answered as unfenced proves that the session holds for the session's length
  after the heartbeat was *sent*: the controller received it later.
* While the lease is over, only an answer that no fencing can hide behind renews it: see
  :meth:`SessionLease.may_unfence` and :meth:`SessionLease.on_unfenced`.
* If the processes of too many controllers have ended for one of them to be active, none can have
  fenced the broker since, and the next active controller begins with a whole session for it. So a
  lease that holds at that moment is renewed, and brokers serve on without controllers. The proof is
  that hosts refuse connections, which a firewall may do for a controller that runs: so the lease
  ends at the latest :data:`WITHOUT_CONTROLLERS_MAX_S` after the last answered heartbeat was sent.
* The lease goes on while the machine is suspended, although the clock of deadlines stops.
* Without other nodes that could be the active controller, the lease has no end.
"""

import math
from collections.abc import Callable
from typing import Final

from kwire import attrs

WITHOUT_CONTROLLERS_MAX_S: Final = 60.0
"""The longest time for which a broker serves without an answer from a controller.

Long enough for all controllers to be restarted; short, since a firewall can fake their end.
"""

SUSPENSION_MIN_S: Final = 0.01


def _suspension(before_s: float, after_s: float) -> float:
    """Return the time of a suspension between two readings, which vary by microseconds."""
    suspension_s = after_s - before_s
    return suspension_s if suspension_s > SUSPENSION_MIN_S else 0.0


def _never_suspended() -> float:
    return 0.0


@attrs.define
class SessionLease:
    """The lease of one broker; requests compare the time with ``end``."""

    timeout_s: float
    """``broker.session.timeout.ms``, which all nodes are to have alike."""
    suspended_s: Callable[[], float] = _never_suspended
    """Returns the seconds that ``now`` leaves out, since the machine was suspended."""
    end: float = math.inf
    """The time at which it ends; infinite before the first heartbeat was answered."""
    _suspended_s: float = attrs.field(init=False, default=0.0)
    """The value of ``suspended_s`` when the request was sent that set the end."""
    _request_suspended_s: float = attrs.field(init=False, default=0.0)
    """The value of ``suspended_s`` at the last :meth:`begin_request`."""
    _renewed_at: float | None = attrs.field(init=False, default=None)
    """The time at which the last answered heartbeat was sent."""
    _past_over_s: float = attrs.field(init=False, default=0.0)
    """The seconds for which it was over before it was renewed."""

    def begin_request(self) -> None:
        """Note that a request to the controllers is sent now."""
        self._request_suspended_s = self.suspended_s()

    def is_over(self, now: float) -> bool:
        return self.end != math.inf and now + self._missed_s() >= self.end

    def left_s(self, now: float) -> float:
        """Return the seconds for which the lease holds if it is not extended; at least 0."""
        return max(0.0, self.end - now - self._missed_s())

    def over_s(self, now: float) -> float:
        """Return the seconds for which the lease has been over so far, in all.

        They are seconds of ``now``, so they leave a suspension out: who subtracts them from ``now``
        has a clock that never goes back.
        """
        return self._past_over_s + max(0.0, now - self.end)

    def _missed_s(self) -> float:
        """Return the seconds of a suspension since the request was sent that set the end."""
        return _suspension(self._suspended_s, self.suspended_s())

    def renew(self, sent_at: float, now: float) -> None:
        """Extend the lease: its session holds from the time ``sent_at`` of a heartbeat."""
        over_s = self.over_s(now)
        self.end, self._renewed_at = sent_at + self.timeout_s, sent_at
        self._suspended_s = self._request_suspended_s
        self._past_over_s += over_s - self.over_s(now)  # The answer may come after the new end.

    def on_unfenced(self, sent_at: float, now: float, *, knows_fencing: bool) -> None:
        """A heartbeat was answered as unfenced: renew the lease if that proves that it held.

        The answer to a heartbeat that was sent while the lease held proves nothing once the lease
        is over: the controller may have fenced the broker before it got the heartbeat, which then
        unfenced it. ``knows_fencing``: the metadata had the fencing when it was sent.
        """
        missed_s = _suspension(self._suspended_s, self._request_suspended_s)
        was_over = sent_at + missed_s >= self.end  # A suspension since then does not count.
        if knows_fencing or was_over or not self.is_over(now):
            self.renew(sent_at, now)

    def keep(self, now: float) -> None:
        """No other node can be the active controller."""
        self._past_over_s = self.over_s(now)
        self.end, self._renewed_at = math.inf, None

    def on_controllers_ended(self, asked_at: float, now: float) -> None:
        """No active controller existed at some time between these two."""
        if self.is_over(now):
            return
        passed_s = _suspension(self._suspended_s, self._request_suspended_s)
        renewed_at = asked_at if self._renewed_at is None else self._renewed_at - passed_s
        last_end = max(self.end - passed_s, renewed_at + WITHOUT_CONTROLLERS_MAX_S)
        self.end, self._renewed_at = min(asked_at + self.timeout_s, last_end), renewed_at
        self._suspended_s = self._request_suspended_s

    def may_unfence(self, now: float, *, knows_fencing: bool) -> bool:
        """Whether a heartbeat may unfence the broker now.

        If it did so while the broker does not know that it was fenced (``knows_fencing``), the
        answer would look as if the session had held all the time.
        """
        return knows_fencing or not self.is_over(now)
