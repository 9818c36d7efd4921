"""Wakes the tasks of connections when bytes arrive on them, or their peer hangs up.

The first :data:`DIRECT` connections of a node wait with trio itself, which is fastest for each
request. The others wait in a second epoll, in which each is registered once, for as long as it is
open: trio runs every ready task before it polls again, so with thousands of ready connections a
turn of the event loop would be unbounded. Here a turn wakes at most :data:`WAKES` connections in
the order of their arrival, and at most :data:`HANG_UPS` whose peer hung up: thousands may end
together with a client's process, and no client waits for their end.

All connections are watched for hang-ups, so that a hang-up is noticed while a request is being
answered and the connection is not read. An idle node is not woken. Without epoll, every connection
waits with trio, and a hang-up is noticed when an answer is sent.
"""

import select
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, checkpoint, wait_readable

DIRECT: Final = 128
"""The number of connections that wait with trio."""
WAKES: Final = 32
"""The number of other connections with something to read that are woken in one turn."""
HANG_UPS: Final = 16
"""The number of connections whose peer hung up that are woken in one turn."""
POLLED: Final = 512
"""The events polled in one turn: more than a turn handles, so that hang-ups are found."""
_HAS_EPOLL: Final = hasattr(select, "epoll")
_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR if _HAS_EPOLL else 0


def _nothing() -> None:
    """Do nothing."""


def _epoll() -> "select.epoll | None":
    return select.epoll() if _HAS_EPOLL else None


@attrs.define(eq=False, repr=False)
class WatchedSocket:
    """One connection that is watched for arrivals."""

    descriptor: int
    on_hang_up: Callable[[], None]
    """Called once, when the peer has closed its side."""
    direct: bool
    arrived: bool = False
    """True if bytes came for which the connection's task was not woken."""
    ended: bool = False
    """True once the peer has closed its side: from then on a read never waits."""
    queued: bool = False
    """True while the connection is in the queue of connections to wake."""
    is_unwatched: bool = False
    _task: Task | None = None

    @property
    def was_among_few(self) -> bool:
        """True if the peer hung up and few connections were woken for that in the same turn."""
        return self.ended and not self.direct

    async def wait_data(self) -> None:
        """Wait until a read may return bytes; a read may still find none."""
        if self.direct:
            await wait_readable(self.descriptor)
        elif self.arrived or self.ended:
            self.arrived = False
            await checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def wake(self) -> None:
        """Wake the connection's task; if it is not waiting, its next wait returns at once."""
        task, self._task = self._task, None
        if task is None:
            self.arrived = True
        else:
            trio.lowlevel.reschedule(task)

    def _abort(self, _: RaiseCancelT) -> Abort:
        self._task = None
        return Abort.SUCCEEDED


@attrs.define(eq=False, repr=False)
class ReadinessPoller:
    """The watched connections of one node."""

    _epoll: "select.epoll | None" = attrs.field(factory=_epoll)
    _watched: dict[int, WatchedSocket] = attrs.field(factory=dict)
    _direct: int = 0
    """The number of open connections that wait with trio."""
    _ready: deque[WatchedSocket] = attrs.field(factory=deque)
    _ended: deque[WatchedSocket] = attrs.field(factory=deque)

    def watch(self, descriptor: int, on_hang_up: Callable[[], None]) -> WatchedSocket:
        """Begin to watch a new connection."""
        direct = self._epoll is None or self._direct < DIRECT
        watched = WatchedSocket(descriptor, on_hang_up, direct)
        if self._epoll is not None:
            events = select.EPOLLRDHUP | select.EPOLLET
            self._epoll.register(descriptor, events if direct else events | select.EPOLLIN)
        self._watched[descriptor] = watched
        self._direct += direct
        return watched

    def unwatch(self, watched: WatchedSocket) -> None:
        """Stop watching a connection that is about to be closed."""
        if watched.is_unwatched:
            return
        watched.is_unwatched = True
        watched.on_hang_up = _nothing  # It would keep a reference cycle with the connection.
        del self._watched[watched.descriptor]
        self._direct -= watched.direct
        if self._epoll is not None:
            self._epoll.unregister(watched.descriptor)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()

    async def run(self) -> None:
        """Wake tasks until cancelled; sleep while nothing arrives."""
        if self._epoll is None:
            return
        while True:
            if self._ready or self._ended:
                await checkpoint()
            else:
                await wait_readable(self._epoll.fileno())
            self._poll(self._epoll)
            self._wake()

    def _poll(self, epoll: "select.epoll") -> None:
        """Queue the connections with events: those to read from and those whose peer hung up."""
        for descriptor, events in epoll.poll(0, POLLED):
            watched = self._watched[descriptor]
            if events & _ENDED and not watched.ended:
                watched.ended = True
                self._ended.append(watched)
            elif not watched.queued and not watched.ended:
                watched.queued = True
                self._ready.append(watched)

    def _wake(self) -> None:
        """Wake this turn's share of both queues."""
        for _ in range(min(WAKES, len(self._ready))):
            watched = self._ready.popleft()
            watched.queued = False
            if not watched.is_unwatched:
                watched.wake()
        for _ in range(min(HANG_UPS, len(self._ended))):
            watched = self._ended.popleft()
            if not watched.is_unwatched:
                watched.on_hang_up()
                if not watched.direct:
                    watched.wake()
