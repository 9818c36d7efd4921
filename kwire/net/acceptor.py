"""Accepts connections on a node's listeners, as its limits allow (KIP-402, KIP-612).

A connection over the limits of its listener or the node waits in the kernel's backlog, as does a
connection that would take a descriptor reserved for files. A connection over its address's limit is
closed at once; a connection over its address's rate is closed a little later, and not read until
then.
"""

import errno
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs
import trio
from trio.lowlevel import ParkingLot, wait_readable

from kwire.lazy_heap import LazyHeap
from kwire.metrics import Metrics, count_throttle
from kwire.net.address_rates import CREATED, AddressRates
from kwire.net.limits import UNLIMITED, Admission, Limits, Rate
from kwire.net.listener import Listener

logger = logging.getLogger(__name__)

ACCEPT_BATCH: Final = 2
"""The number of connections accepted in one turn of the loop; the next turn handles their first
requests. Each connection costs 0.2 ms in total, during which other clients wait.
"""
COLLECTED: Final = 32
"""Garbage is collected after this many accepted connections, which takes 0.5 ms."""
EXHAUSTED_PAUSE_S: Final = 0.25
REPORT_S: Final = 10.0
"""The shortest time between two log lines about pauses."""
THROTTLED_MAX: Final = 1000
"""The most open connections over their address's rate; further connections are closed at once."""
_MAPPED: Final = "::ffff:"
"""The prefix of an IPv4 address that connected to an IPv6 socket."""


class OpenConnection(Protocol):
    """The part of a connection that this module uses."""

    def close(self, reason: str) -> None: ...


OnAccepted = Callable[[Listener, socket.socket, str, int], None]
"""Called with each accepted socket, and the host and port of its peer."""


@attrs.define(eq=False, repr=False)
class Acceptor:
    """The limits of one node's connections, and the tasks that accept them."""

    admission: Admission
    now: Callable[[], float]
    find_oldest: Callable[[], Awaitable[OpenConnection | None]]
    """Returns the least recently used connection that may be closed for a protected listener."""
    rates: AddressRates
    metrics: Metrics
    collect: Callable[[], object] = lambda: None
    """Collects garbage among the objects of new connections, to keep later collections short."""
    last_descriptor: int = UNLIMITED
    """If the next descriptor would be above this, connections wait in the kernel."""
    _throttled: LazyHeap[socket.socket] = attrs.field(factory=LazyHeap)
    """Connections over their address's rate, by the time when they are closed."""
    _next_close: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """The scope in which :meth:`close_throttled` sleeps."""
    _rate: Rate = attrs.field(init=False)
    _closed: ParkingLot = attrs.field(factory=ParkingLot)
    _relimited: ParkingLot = attrs.field(factory=ParkingLot)
    _uncollected_count: int = 0
    """The connections accepted since :attr:`collect` was last called."""
    _reported_at: float = attrs.field(init=False, default=float("-inf"))
    """The time when a pause was last logged."""

    def __attrs_post_init__(self) -> None:
        self._rate = Rate(self.admission.node.max_connection_creation_rate)

    def relimit(self, limits: Limits) -> None:
        """Change the node's limits on connections and on their rate."""
        self.admission.node = limits
        self._rate.per_second = limits.max_connection_creation_rate
        self._closed.unpark_all()
        self._relimited.unpark_all()

    def on_closed(self, listener: Listener, host: str) -> None:
        """Record that an accepted connection ended."""
        self.admission.on_closed(listener.name, host)
        self._closed.unpark_all()

    async def run(self, listener: Listener, on_accepted: OnAccepted) -> None:
        """Accept connections on one listener until it is closed."""
        while listener.sock.fileno() >= 0:
            try:
                await wait_readable(listener.sock)
                await self._wait_room(listener)
                self._accept_some(listener, on_accepted)
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno == errno.EBADF:
                    return
                self._report_pause(listener, error)
                await trio.sleep(EXHAUSTED_PAUSE_S)

    async def close_throttled(self) -> None:
        """Close connections over their address's rate when their time is up, until cancelled.

        This slows down addresses that connect again and again.
        """
        try:
            while True:
                with trio.CancelScope(deadline=self._throttled.first_key) as self._next_close:
                    await trio.sleep_forever()
                for sock in self._throttled.pop_up_to(self.now()):
                    sock.close()
        finally:
            for sock in self._throttled.pop_up_to(math.inf):
                sock.close()

    def _close_later(self, sock: socket.socket, deadline: float) -> None:
        if len(self._throttled) >= THROTTLED_MAX:
            sock.close()
            return
        self._throttled.push(sock, deadline)
        self._next_close.deadline = min(self._next_close.deadline, deadline)

    async def _wait_room(self, listener: Listener) -> None:
        """Wait until the limits allow one more connection."""
        while True:
            delay_s = self._delay_s(listener)
            if delay_s > 0:
                with trio.move_on_after(delay_s):
                    await self._relimited.park()
            elif self._is_short_of_descriptors(listener):
                self._report_pause(listener, "descriptors")
                while self._is_short_of_descriptors(listener):
                    with trio.move_on_after(EXHAUSTED_PAUSE_S):
                        await self._closed.park()
            elif not self.admission.is_full(listener.name, listener.limits):
                return
            elif listener.protected and not self._is_full_itself(listener):
                await self._make_room(listener)
            else:
                await self._closed.park()

    def _delay_s(self, listener: Listener) -> float:
        """Return the seconds until the rates allow one more connection.

        Only its own rate limits a protected listener, so that clients who use up the node's rate do
        not keep out the nodes of the cluster.
        """
        own_s = listener.rate.delay_s(self.now())
        return own_s if listener.protected else max(own_s, self._rate.delay_s(self.now()))

    async def _make_room(self, listener: Listener) -> None:
        """Close an unprotected connection, unless another connection ends in the meantime."""
        oldest = await self.find_oldest()
        if self.admission.is_full(listener.name, listener.limits):
            if oldest is not None:
                oldest.close("room for a node of the cluster")
            await self._closed.park()

    def _report_pause(self, listener: Listener, reason: object) -> None:
        """Log a pause, unless one was logged a moment ago: a flood can cause several per second."""
        if self.now() - self._reported_at >= REPORT_S:
            self._reported_at = self.now()
            logger.warning("accept paused listener=%s reason=%s", listener.name, reason)

    def _is_short_of_descriptors(self, listener: Listener) -> bool:
        """Return whether only descriptors reserved for files are left."""
        if 2 * self.admission.total < self.last_descriptor:
            return False
        try:
            descriptor = os.dup(listener.sock.fileno())
        except OSError:
            return True
        os.close(descriptor)
        return descriptor > self.last_descriptor

    def _is_full_itself(self, listener: Listener) -> bool:
        return self.admission.per_listener[listener.name] >= listener.limits.max_connections

    def _accept_some(self, listener: Listener, on_accepted: OnAccepted) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                sock, peer = listener.sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            host, port, *_ = peer
            if host.startswith(_MAPPED) and "." in host:
                host = host[len(_MAPPED) :]
            if self.admission.is_address_full(host):
                logger.info("connection refused listener=%s peer=%s: too many", listener.name, host)
                sock.close()
                continue
            throttle_s = self.rates.throttle_s(host, self.now())
            if throttle_s > 0:
                count_throttle(self.metrics, CREATED, throttle_s)
                self._close_later(sock, self.now() + throttle_s)
                continue
            if not listener.protected:
                self._rate.take()
            listener.rate.take()
            try:
                on_accepted(listener, sock, host, port)
            except BaseException:
                sock.close()
                raise
            self.admission.on_opened(listener.name, host)
            listener.connections_accepted.value += 1
            self._uncollected_count += 1
            if self._uncollected_count >= COLLECTED:
                self._uncollected_count = 0
                self.collect()
            if self.admission.is_full(listener.name, listener.limits) or self._delay_s(listener):
                return
