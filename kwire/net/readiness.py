"""Detects that bytes have arrived on connections, or that their peer has hung up.

All connections of a node wait in one epoll object, separate from the event loop's. Each is
registered once, for as long as it is open. One task sleeps until the epoll object has events. Then
it serves the connections in the order of their arrival: requests that need not wait are answered
immediately, and a connection's own task continues only if something has to wait. So a small request
costs neither a task switch nor a call of epoll, and a turn of the event loop ends after
:data:`SERVED` connections or :data:`TURN_S`, however many are ready.

A connection whose request waits without a task (:class:`kwire.waits.Parked`) is served once more
when that wait is over: after the connections with new bytes, so that the producer whose append
ended a thousand waits is answered first. Parked requests have their own share of a turn.

At most :data:`HANG_UPS` connections whose peer hung up are woken in one turn: thousands may end
together with a client's process, and cleaning up is not urgent. A hang-up is also noticed while a
request is being answered and the connection is not read. An idle node is not woken.

Without epoll, the task of every connection waits with trio, and a hang-up is noticed when an answer
is sent.
"""

import os
import select
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, checkpoint, wait_readable

SERVED: Final = 64
"""The most connections that are served in one turn."""
RESUMED_S: Final = 0.001
"""The time after which a turn does not continue any more parked requests."""
TURN_S: Final = 0.002
"""The time after which a turn does not serve any more connections."""
HANG_UPS: Final = 16
"""The most connections whose peer hung up that are woken in one turn."""
POLLED: Final = 512
"""The events polled in one turn: more than a turn handles, so that hang-ups are found."""
HAS_EPOLL: Final = hasattr(select, "epoll")
_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR if HAS_EPOLL else 0


class Serve(Protocol):
    """Serves a connection; returns False if the connection's task has to continue."""

    def __call__(self, *, has_arrived: bool) -> bool: ...


def _nothing() -> None:
    """Do nothing."""


def _epoll() -> "select.epoll | None":
    return select.epoll() if HAS_EPOLL else None


@attrs.define(eq=False, repr=False)
class WatchedSocket:
    """A connection that is watched for new bytes."""

    descriptor: int
    on_hang_up: Callable[[], None]
    """Called once, when the peer has closed its side."""
    poller: "ReadinessPoller"
    arrived: bool = False
    """True if bytes arrived for which the connection's task was not woken."""
    ended: bool = False
    """True once the peer has closed its side; after that, a read never waits."""
    queued: bool = False
    """True while the connection is in the queue of connections to serve."""
    is_unwatched: bool = False
    _task: Task | None = None
    _serve: "Serve | None" = None
    _start: Callable[[], None] | None = None
    """Starts the connection's task; None once it has been started."""

    @property
    def is_polled(self) -> bool:
        """Return whether the connection is served without its task; always False without epoll."""
        return self.poller.is_polling

    async def wait_data(self, serve: "Serve | None" = None) -> None:
        """Wait until a read may return bytes; a read may still find none.

        With ``serve``, which must not raise, the function is called when bytes arrive, and the wait
        continues until it returns False.
        """
        if not self.is_polled:
            await wait_readable(self.descriptor)
        elif self.arrived or self.ended:
            self.arrived = False
            await checkpoint()
        else:
            self._task, self._serve = trio.lowlevel.current_task(), serve
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def start_when_needed(self, serve: "Serve", start: Callable[[], None]) -> None:
        """Serve a new connection without a task until its task has to continue.

        ``start`` then starts the task. If the connection is not served without its task, the task
        starts now.
        """
        if self.is_polled:
            self._serve, self._start = serve, start
        else:
            start()

    def start_task(self) -> None:
        """Start the connection's task, unless it has been started."""
        start, self._start = self._start, None
        if start is not None:
            self._serve = None
            start()

    def on_arrival(self, *, has_arrived: bool = True) -> None:
        """Serve the connection; if its task is not waiting, its next wait returns at once.

        If nothing ``has_arrived``, the wait of a parked request is over.
        """
        serve = self._serve
        if serve is None or not serve(has_arrived=has_arrived):
            self.wake()

    def wake(self) -> None:
        """Wake or start the connection's task; if it runs, its next wait returns at once."""
        task, self._task, self._serve = self._task, None, None
        if task is not None:
            trio.lowlevel.reschedule(task)
        elif self._start is not None:
            self.start_task()
        else:
            self.arrived = True

    def resume(self) -> None:
        """Serve the connection soon, because its parked request has finished waiting."""
        self.poller.resume(self)

    def resume_first(self) -> None:
        """Serve the connection before others whose parked requests have finished waiting."""
        self.poller.resume(self, is_first=True)

    def forget(self) -> None:
        """Drop the references to the connection, which would be a cycle."""
        self.on_hang_up = _nothing
        self._serve = self._start = None

    def _abort(self, _: RaiseCancelT) -> Abort:
        self._task = self._serve = None
        return Abort.SUCCEEDED


@attrs.define(eq=False, repr=False)
class ReadinessPoller:
    """The watched connections of one node."""

    now: Callable[[], float] = trio.current_time
    _epoll: "select.epoll | None" = attrs.field(factory=_epoll)
    _watched: dict[int, WatchedSocket] = attrs.field(factory=dict)
    _ready: deque[WatchedSocket] = attrs.field(factory=deque)
    _ended: deque[WatchedSocket] = attrs.field(factory=deque)
    _resumed_first: deque[WatchedSocket] = attrs.field(factory=deque)
    _resumed: deque[WatchedSocket] = attrs.field(factory=deque)
    """The connections whose parked requests may continue."""
    _alarm: int = -1
    """An eventfd in the epoll, which ends the sleep of :meth:`run`; negative before the first."""
    _is_sleeping: bool = False

    @property
    def is_polling(self) -> bool:
        return self._epoll is not None

    def watch(self, descriptor: int, on_hang_up: Callable[[], None]) -> WatchedSocket:
        """Begin to watch a new connection."""
        watched = WatchedSocket(descriptor, on_hang_up, self)
        if self._epoll is not None:
            events = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
            self._epoll.register(descriptor, events)
        self._watched[descriptor] = watched
        return watched

    def unwatch(self, watched: WatchedSocket) -> None:
        """Stop watching a connection that is about to be closed."""
        if watched.is_unwatched:
            return
        watched.is_unwatched = True
        watched.forget()
        del self._watched[watched.descriptor]
        if self._epoll is not None:
            self._epoll.unregister(watched.descriptor)

    def resume(self, watched: WatchedSocket, *, is_first: bool = False) -> None:
        """Serve a connection soon, because its parked request has finished waiting.

        With ``is_first``, it is served before the other resumed connections.
        """
        (self._resumed_first if is_first else self._resumed).append(watched)
        if self._is_sleeping:
            self._is_sleeping = False
            os.eventfd_write(self._alarm, 1)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        if self._alarm >= 0:
            os.close(self._alarm)
            self._alarm = -1

    async def run(self) -> None:
        """Serve connections until cancelled; sleep while nothing arrives."""
        if self._epoll is None:
            return
        ready, ended = self._ready, self._ended
        first, resumed = self._resumed_first, self._resumed
        descriptor = self._epoll.fileno()
        self._alarm = os.eventfd(0)
        self._epoll.register(self._alarm, select.EPOLLIN | select.EPOLLET)
        while True:
            if ready or ended or first or resumed:
                await checkpoint()
            else:
                self._is_sleeping = True
                await wait_readable(descriptor)
                self._is_sleeping = False
            self._poll(self._epoll)
            self._serve()
            if first or resumed:
                self._resume()
            if ended:
                self._wake_ended()

    def _poll(self, epoll: "select.epoll") -> None:
        """Queue the connections with events: those with new bytes and those whose peer hung up."""
        for descriptor, events in epoll.poll(0, POLLED):
            watched = self._watched.get(descriptor)
            if watched is None:  # the alarm
                continue
            if events & _ENDED and not watched.ended:
                watched.ended = True
                self._ended.append(watched)
            elif not watched.queued and not watched.ended:
                watched.queued = True
                self._ready.append(watched)

    def _serve(self) -> None:
        """Serve this turn's share of the connections that have bytes to read."""
        ready = self._ready
        began = self.now() if len(ready) > 1 else 0.0
        served = 0
        while ready:
            watched = ready.popleft()
            watched.queued = False
            if not watched.is_unwatched:
                watched.on_arrival()
                served += 1
                if ready and (served >= SERVED or self.now() - began > TURN_S):
                    return

    def _resume(self) -> None:
        """Serve this turn's share of the connections whose parked request may continue.

        Each queue has its own time slice, so that neither queue delays the other.
        """
        for queue in (self._resumed_first, self._resumed):
            began = self.now() if len(queue) > 1 else 0.0
            while queue:
                watched = queue.popleft()
                if not watched.is_unwatched:
                    watched.on_arrival(has_arrived=False)
                    if queue and self.now() - began > RESUMED_S:
                        break

    def _wake_ended(self) -> None:
        """Wake this turn's share of the connections whose peer hung up."""
        for _ in range(min(HANG_UPS, len(self._ended))):
            watched = self._ended.popleft()
            if not watched.is_unwatched:
                watched.on_hang_up()
                watched.wake()
