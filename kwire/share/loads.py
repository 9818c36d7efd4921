"""The loads of share partitions: each one is a task of its own, for which fetches may wait.

A load takes as long as the share coordinator needs, which may be many seconds while that moves to
another node. A fetch waits for it only as long as for records, and gets those of its other
partitions meanwhile; the load continues, so that a later fetch finds its result.
"""

from typing import TYPE_CHECKING

import attrs

from kwire.errors import KafkaError
from kwire.replica.fetch_waits import FetchWait

if TYPE_CHECKING:
    from kwire.share.led_share import LedShare


@attrs.define(eq=False, repr=False)
class Load:
    """The load of one share partition."""

    led: "LedShare | None" = None
    """The share partition; None until it is loaded, and if that has failed."""
    error: KafkaError | None = None
    """The error with which the load has failed."""
    waits: dict[FetchWait, None] = attrs.field(factory=dict)
    """The fetches that wait for the result."""

    @property
    def is_over(self) -> bool:
        """True once there is a result."""
        return self.led is not None or self.error is not None

    def end(self, led: "LedShare | None", error: KafkaError | None) -> None:
        """Record the result, and wake the waiting fetches."""
        self.led, self.error = led, error
        for wait in self.waits:
            wait.waiter.set()
