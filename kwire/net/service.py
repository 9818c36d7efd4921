"""Listeners and connections: one task each, frames answered one after the other.

A connection's turn is at most 16 frames or a millisecond, then others have theirs; its next frame
is read when the previous answer has been handed to the kernel, so a slow reader holds one answer
and nothing more.  Only small answers to frames that came together are sent together, at the end of
the turn or as soon as its task waits for anything.  An error on a connection ends that connection
with one log line.
"""

import errno
import logging
import math
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import attrs
import trio
from trio.lowlevel import checkpoint, wait_readable

from kwire.metrics import CONNECTIONS, CONNECTIONS_MADE, REQUEST_MEMORY, Cell, Metrics
from kwire.net.arrivals import Arrivals, Watched
from kwire.net.framing import Disconnect, Framer, Spares
from kwire.net.gate import Gate
from kwire.net.held_back import HeldBack, is_small
from kwire.net.limits import UNLIMITED, Admission, Limits, Rate
from kwire.net.request_memory import Memory
from kwire.net.send import Sender

log = logging.getLogger(__name__)

TURN_FRAMES: Final = 16
TURN_S: Final = 0.001
RECEIVED_BYTES: Final = 64 << 10
"""The most that one call receives, unless it is of a large frame."""
ACCEPT_BATCH: Final = 8
"""Connections accepted in one turn of the loop; each has its first request ready in the next."""
CLOSE_BATCH: Final = 16
"""Connections closed in one turn; thousands may end together with their process."""
EXHAUSTED_PAUSE_S: Final = 0.25
_IDLE_SCANS: Final = 64
"""The most scans for idle connections per idle time."""


class Session(Protocol):
    """Answers one connection's frames."""

    muted_s: float

    async def answer(self, frame: memoryview) -> Sequence[Any] | None:
        """Return the parts to send, or None for no answer; Disconnect ends the connection."""

    def only_reads(self, frame: memoryview) -> bool:
        """Whether a request changes nothing and may be cancelled when its client is gone."""


class Address(NamedTuple):
    """The host and port of a listener on this machine."""

    host: str
    port: int


@attrs.define(eq=False)
class Connection:
    """One accepted socket."""

    sock: socket.socket
    listener: "Listener"
    host: str
    session: Session
    framer: Framer
    sender: Sender
    last_active: float
    arrivals: Watched = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    answering: memoryview | None = None
    """The request that is being answered."""
    busy: bool = False
    """Whether the client waits for the broker, so that the connection is not idle."""
    claiming: bool = False
    """Whether memory is waited for, for the request to be answered or a frame in the making."""
    muted: bool = False
    """Whether nothing is read for as long as the client was told to wait."""
    hung_up: bool = False
    claimed: int = 0
    """The bytes of memory counted for an incomplete frame."""
    reason: str = ""

    @property
    def used_at(self) -> float:
        """The time when the client last sent bytes, was answered, or took part of an answer."""
        return max(self.last_active, self.sender.active_at)

    def close(self, reason: str) -> None:
        """End the connection as soon as its task can be interrupted."""
        self.reason = reason
        self.scope.cancel()

    def noticed_hang_up(self) -> None:
        """Close the connection if the peer closed its side while a mere read is answered.

        Requests that change something go on, as do reads with more bytes received after them: a
        producer without acknowledgements closes as soon as it has sent.
        """
        self.hung_up = True
        request = self.answering
        if request is not None:
            is_useless = self.session.only_reads(request) and self.nothing_unread()
        elif self.claiming:  # the rest of that frame will not come
            is_useless = self.nothing_to_receive()
        else:
            is_useless = self.muted and self.nothing_unread()
        if is_useless:
            self.close("")

    async def claim(self, memory: Memory, count: int) -> None:
        """Count bytes of a frame, when there is room for them."""
        self.busy = self.claiming = True
        if self.hung_up:
            self.noticed_hang_up()
        await memory.claim(count, self)
        self.busy = self.claiming = False

    async def wait_muted(self, now: float) -> None:
        """Read nothing for as long as the session says; a client that is gone or idle is closed."""
        self.busy, self.muted, self.last_active = False, True, now
        if self.hung_up:
            self.noticed_hang_up()
        await trio.sleep(self.session.muted_s)
        self.muted, self.session.muted_s = False, 0.0

    def nothing_unread(self) -> bool:
        return not self.framer.partial and self.nothing_to_receive()

    def nothing_to_receive(self) -> bool:
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True


@attrs.define(eq=False)
class Listener:
    """A bound socket, its limits, and the factory of the sessions that answer on it."""

    name: str
    sock: socket.socket
    new_session: Callable[[str, str], Session]
    """Called with the listener's name and the peer's host for each connection."""
    limits: Limits
    protected: bool
    rate: Rate
    made: Cell

    @property
    def idle_s(self) -> float:
        idle_ms = self.limits.connections_max_idle_ms
        return idle_ms / 1000 if idle_ms >= 0 else math.inf

    @property
    def address(self) -> Address:
        host, port = self.sock.getsockname()[:2]
        return Address(host, port)


@attrs.define(eq=False)
class NetService:
    """All listeners of one node."""

    limits: Limits = attrs.field(factory=Limits)
    metrics: Metrics = attrs.field(factory=Metrics)
    now: Callable[[], float] = trio.current_time
    last_descriptor: int = UNLIMITED
    """Connections wait in the kernel while the next descriptor would be above this."""
    listeners: dict[str, Listener] = attrs.field(factory=dict)
    connections: set[Connection] = attrs.field(factory=set)
    admission: Admission = attrs.field(init=False)
    _rate: Rate = attrs.field(init=False)
    _memory: Memory = attrs.field(init=False)
    _threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(8))
    _arrivals: Arrivals = attrs.field(factory=Arrivals)
    _spares: Spares = attrs.field(factory=Spares)
    _nursery: trio.Nursery | None = None
    _held_back: HeldBack = attrs.field(factory=HeldBack)
    _leaving: Gate = attrs.field(factory=lambda: Gate(CLOSE_BATCH))
    _opened: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _closed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _relimited: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def __attrs_post_init__(self) -> None:
        self.admission = Admission(self.limits)
        self._rate = Rate(self.limits.max_connection_creation_rate)
        self._memory = Memory(_memory_bound(self.limits), self.now)
        self.metrics.ask(REQUEST_MEMORY, lambda: self._memory.used)

    def bind(
        self,
        name: str,
        host: str,
        port: int,
        new_session: Callable[[str, str], Session],
        *,
        limits: Limits | None = None,
        protected: bool = False,
    ) -> Address:
        """Bind a listener's address; connections wait in the kernel until :meth:`accept`.

        ``limits`` are this listener's own ones.  A ``protected`` listener still accepts when the
        connections of other listeners fill the node.
        """
        own = limits or self.limits
        listener = Listener(
            name=name,
            sock=_bound(host, port, own),
            new_session=new_session,
            limits=own,
            protected=protected,
            rate=Rate(own.max_connection_creation_rate),
            made=self.metrics.cell(CONNECTIONS_MADE, name),
        )
        self.metrics.ask(CONNECTIONS, lambda: self.admission.per_listener[name], name)
        self.listeners[name] = listener
        return listener.address

    def relimit(self, limits: Limits) -> None:
        """Change the limits of connections and of their rate; open connections stay."""
        before = self.limits
        self.limits = self.admission.node = limits
        self._rate.per_second = limits.max_connection_creation_rate
        for listener in self.listeners.values():
            if listener.limits is before:
                listener.limits = limits
                listener.rate.per_second = limits.max_connection_creation_rate
        self._closed.unpark_all()
        self._relimited.unpark_all()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; every socket is closed then."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._arrivals.run)
                nursery.start_soon(self._close_idle)
                nursery.start_soon(self._held_back.run)
                nursery.start_soon(self._leaving.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._arrivals.close()
            for listener in self.listeners.values():
                listener.sock.close()

    def accept(self, name: str) -> None:
        """Start to serve a bound listener.  Only while running."""
        if self._nursery is None:
            raise RuntimeError("the service does not run")
        self._nursery.start_soon(self._accept, self.listeners[name])

    def stop_accepting(self) -> None:
        """Refuse new connections on all listeners; the open ones go on."""
        for listener in self.listeners.values():
            if listener.sock.fileno() >= 0:
                trio.lowlevel.notify_closing(listener.sock)
                listener.sock.close()

    async def _accept(self, listener: Listener) -> None:
        while listener.sock.fileno() >= 0:
            try:
                await wait_readable(listener.sock)
                await self._room(listener)
                self._accept_some(listener)
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno == errno.EBADF:
                    return
                log.warning("accept paused listener=%s reason=%s", listener.name, error)
                await trio.sleep(EXHAUSTED_PAUSE_S)

    async def _room(self, listener: Listener) -> None:
        """Wait until the limits allow one more connection."""
        while True:
            wait_s = max(self._rate.wait(self.now()), listener.rate.wait(self.now()))
            if wait_s > 0:
                with trio.move_on_after(wait_s):
                    await self._relimited.park()
            elif self._is_crowded(listener):
                log.warning("accept paused listener=%s reason=descriptors", listener.name)
                while self._is_crowded(listener):
                    with trio.move_on_after(EXHAUSTED_PAUSE_S):
                        await self._closed.park()
            elif not self.admission.full(listener.name, listener.limits):
                return
            else:
                if listener.protected:
                    self._make_room(listener)
                await self._closed.park()

    def _is_crowded(self, listener: Listener) -> bool:
        """Whether only the descriptors that are reserved for files are left."""
        if 2 * len(self.connections) < self.last_descriptor:
            return False
        try:
            descriptor = os.dup(listener.sock.fileno())
        except OSError:
            return True
        os.close(descriptor)
        return descriptor > self.last_descriptor

    def _make_room(self, listener: Listener) -> None:
        """Close the least recently used unprotected connection, for a protected listener."""
        if self.admission.per_listener[listener.name] >= listener.limits.max_connections:
            return
        others = (c for c in self.connections if not c.listener.protected and not c.reason)
        oldest = min(others, key=lambda c: c.used_at, default=None)
        if oldest is not None:
            oldest.close("room for a node of the cluster")

    def _accept_some(self, listener: Listener) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                sock, peer = listener.sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            host = peer[0]
            if self.admission.crowded(host):
                log.info("connection refused listener=%s peer=%s: too many", listener.name, host)
                sock.close()
                continue
            self._rate.take()
            listener.rate.take()
            try:
                self._open(listener, sock, host)
            except BaseException:
                sock.close()
                raise
            now = self.now()
            if (
                self.admission.full(listener.name, listener.limits)
                or self._rate.wait(now)
                or listener.rate.wait(now)
            ):
                return

    def _open(self, listener: Listener, sock: socket.socket, host: str) -> None:
        assert self._nursery is not None
        sock.setblocking(False)
        with suppress(OSError):  # it may be gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(
            sock=sock,
            listener=listener,
            host=host,
            session=listener.new_session(listener.name, host),
            framer=Framer(listener.limits.socket_request_max_bytes, self._spares),
            sender=Sender(sock, self._threads, self.now),
            last_active=self.now(),
        )
        connection.arrivals = self._arrivals.watch(sock.fileno(), connection.noticed_hang_up)
        self.admission.opened(listener.name, host)
        listener.made.value += 1
        self.connections.add(connection)
        self._opened.unpark_all()
        self._nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            with connection.scope:
                await self._converse(connection)
            if not connection.arrivals.was_among_few:
                await self._leaving.enter()
        except Disconnect as reason:
            connection.reason = str(reason)
        except OSError as error:
            log.debug("connection lost peer=%s reason=%s", connection.host, error)
        except Exception:
            log.exception("connection failed peer=%s", connection.host)
        finally:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.reason:
            log.info(
                "connection closed listener=%s peer=%s reason=%s",
                connection.listener.name,
                connection.host,
                connection.reason,
            )
        connection.sender.stop_draining()
        connection.sender.flush()
        connection.framer.drop()
        self._memory.free(connection.claimed, connection)
        self._arrivals.forget(connection.arrivals)
        connection.sock.close()
        self.connections.discard(connection)
        self.admission.closed(connection.listener.name, connection.host)
        self._closed.unpark_all()

    async def _converse(self, connection: Connection) -> None:
        """Read and answer until the peer hangs up."""
        sock, framer = connection.sock, connection.framer
        while True:
            await connection.arrivals.readable()
            more = True
            while more:
                if framer.target() is not None and framer.held > connection.claimed:
                    await self._claim(connection)
                try:
                    count, more = _receive(sock, framer)
                except BlockingIOError:
                    break
                if not count:
                    return
                connection.last_active = self.now()
                await self._turns(connection)
                if more:
                    await checkpoint()

    async def _claim(self, connection: Connection) -> None:
        """Claim the memory by which the incomplete frame's buffer has grown."""
        grown = connection.framer.held - connection.claimed
        if grown > 0:
            await connection.claim(self._memory, grown)
            connection.claimed += grown

    async def _turns(self, connection: Connection) -> None:
        """Answer every whole frame that has arrived, in turns."""
        framer, started, count = connection.framer, connection.last_active, 0
        answered = False
        while (frame := framer.take()) is not None:
            await self._answer(connection, frame)
            answered = True
            count += 1
            if framer.ready and (count >= TURN_FRAMES or self.now() - started > TURN_S):
                await checkpoint()
                started, count = self.now(), 0
        if connection.sender.unsent:
            await connection.sender.send(())
        if answered:
            connection.last_active = self.now()

    async def _answer(self, connection: Connection, frame: memoryview) -> None:
        memory, session, sender = self._memory, connection.session, connection.sender
        size = connection.claimed or len(frame)
        if connection.claimed:
            connection.claimed = 0
        elif memory.fits(size):
            memory.used += size
        else:
            connection.answering = frame
            await connection.claim(memory, size)
        try:
            connection.busy = True
            parts = await self._decided(connection, frame)
            connection.busy = False
            if parts is not None:
                if connection.framer.ready and is_small(parts) and sender.draining is None:
                    self._held_back.add(sender, parts)
                else:
                    await sender.send(parts)
        finally:
            memory.free(size, connection)
            buffer = frame.obj
            if isinstance(buffer, bytearray):
                frame.release()
                self._spares.give(buffer)
        if session.muted_s > 0:
            if sender.unsent:
                await sender.send(())
            await connection.wait_muted(self.now())

    async def _decided(self, connection: Connection, frame: memoryview) -> Sequence[Any] | None:
        """Return the session's answer; a mere read is cancelled when the peer hangs up."""
        self._memory.answering += 1
        connection.answering = frame
        try:
            if connection.hung_up:
                connection.noticed_hang_up()
            return await connection.session.answer(frame)
        finally:
            connection.answering = None
            self._memory.answering -= 1

    async def _close_idle(self) -> None:
        """Close connections unused for the idle time; sleep until the next one can be due."""
        while True:
            self._spares.trim()
            if not self.connections:
                await self._opened.park()
            now = self.now()
            due = shortest = min(listener.idle_s for listener in self.listeners.values())
            for connection in list(self.connections):
                left = connection.used_at + connection.listener.idle_s - now
                if left > 0 or connection.busy:
                    due = min(due, left)
                elif not connection.reason:
                    connection.close("idle")
            await trio.sleep(max(due, shortest / _IDLE_SCANS))


def _receive(sock: socket.socket, framer: Framer) -> tuple[int, bool]:
    """Receive once; return how many bytes came, and whether more may have arrived.

    The caller keeps neither the bytes nor the buffer, since a connection can wait for long.
    """
    target = framer.target()
    if target is None:
        data = sock.recv(RECEIVED_BYTES)
        framer.feed(data)
        return len(data), len(data) == RECEIVED_BYTES
    count = sock.recv_into(target)
    framer.filled(count)
    return count, count == len(target)


def _memory_bound(limits: Limits) -> int:
    """Return the setting, or a quarter of this machine's memory if it is "no limit"."""
    if limits.queued_max_request_bytes > 0:
        return limits.queued_max_request_bytes
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 1 << 30


def _bound(host: str, port: int, limits: Limits) -> socket.socket:
    """Return a listening socket; an empty host means every interface."""
    family, address = _resolved(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not host:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if limits.socket_receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.socket_receive_buffer_bytes)
        if limits.socket_send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.socket_send_buffer_bytes)
        sock.bind(address)
        sock.listen(limits.socket_listen_backlog_size)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolved(host: str, port: int) -> tuple[int, Any]:
    if not host:
        if socket.has_dualstack_ipv6():
            return socket.AF_INET6, ("::", port)
        return socket.AF_INET, ("0.0.0.0", port)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = min(found, key=lambda info: info[0] != socket.AF_INET)
    return first[0], first[4]
