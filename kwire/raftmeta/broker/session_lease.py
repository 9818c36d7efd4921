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
  lease that holds at that moment is renewed, and brokers serve on without controllers.
* Without other nodes that could be the active controller, the lease has no end.
"""

import math

from kwire import attrs


@attrs.define
class SessionLease:
    """The lease of one broker; requests compare the time with ``end``."""

    timeout_s: float
    """``broker.session.timeout.ms``, which all nodes are to have alike."""
    end: float = math.inf
    """The time at which it ends; infinite before the first heartbeat was answered."""

    def is_over(self, now: float) -> bool:
        return now >= self.end

    def renew(self, sent_at: float) -> None:
        """A heartbeat of this time was answered: the broker is not fenced."""
        self.end = sent_at + self.timeout_s

    def keep(self) -> None:
        """No other node can be the active controller."""
        self.end = math.inf

    def on_controllers_ended(self, now: float) -> None:
        """No active controller can exist at this time."""
        if not self.is_over(now):
            self.end = now + self.timeout_s

    def may_unfence(self, now: float, *, knows_fencing: bool) -> bool:
        """Whether a heartbeat may unfence the broker now.

        If it did so while the broker does not know that it was fenced (``knows_fencing``), the
        answer would look as if the session had held all the time.
        """
        return knows_fencing or not self.is_over(now)
