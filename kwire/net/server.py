"""The listeners and connections of one node.

Each listener has its own task, and so has each connection that has ever had to wait for anything.
The task of a connection takes more memory than everything else that belongs to the connection, so
it starts only when it is needed: at once with TLS, with logins, or without epoll. An error on a
connection ends that connection with one log line. Connections unused for their listener's idle time
are closed.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio
from trio.lowlevel import ParkingLot

from kwire.drive import Slices
from kwire.log.threads import DiskThreads
from kwire.metrics import CONNECTIONS, CONNECTIONS_MADE, REQUEST_MEMORY, Metrics
from kwire.net.acceptor import Acceptor
from kwire.net.address_rates import AddressRates
from kwire.net.byte_socket import ByteSocket
from kwire.net.connection import Connection
from kwire.net.framing import BufferPool, Disconnect, Framer
from kwire.net.limits import Admission, Limits, Rate
from kwire.net.listener import Address, ForConnection, Listener, LoginRequired, bound_socket
from kwire.net.pending_logins import Guests
from kwire.net.readiness import ReadinessPoller
from kwire.net.request_memory import RequestMemory
from kwire.net.send import Sender
from kwire.net.task_pacer import TaskPacer
from kwire.net.turns import Turns
from kwire.net.write_coalescer import WriteCoalescer
from kwire.raftmeta.metadata.quota_lookup import Quotas

if TYPE_CHECKING:
    from kwire.net.tls.server_tls import ServerTls

logger = logging.getLogger(__name__)

CLOSE_BATCH: Final = 16
"""Connections closed in one turn; thousands may end together with their process."""
_IDLE_SCANS: Final = 64
"""The largest number of scans for idle connections per idle time."""


@attrs.define(eq=False, repr=False)
class NetServer:
    """All listeners of one node."""

    limits: Limits = attrs.field(factory=Limits)
    metrics: Metrics = attrs.field(factory=Metrics)
    now: Callable[[], float] = trio.current_time
    answers_at_once: bool = True
    """False in tests of requests that cannot be answered at once."""
    listeners: dict[str, Listener] = attrs.field(factory=dict)
    connections: set[Connection] = attrs.field(factory=set)
    acceptor: Acceptor = attrs.field(init=False)
    _memory: RequestMemory = attrs.field(init=False)
    _threads: DiskThreads = attrs.field(factory=DiskThreads)
    """The threads that send bytes that are not in the page cache."""
    _readiness: ReadinessPoller = attrs.field(
        default=attrs.Factory(lambda self: ReadinessPoller(self.now), takes_self=True)
    )
    _buffers: BufferPool = attrs.field(factory=BufferPool)
    _nursery: trio.Nursery | None = None
    _start: Callable[[Callable[[], Awaitable[None]]], None] = attrs.field(init=False)
    """Starts a task. All connections share it and the next one, because each bound method and
    partial takes 60 to 150 bytes of a connection."""
    _start_serving: Callable[[Turns], None] = attrs.field(init=False)
    """Starts the task of a connection."""
    _coalescer: WriteCoalescer = attrs.field(factory=WriteCoalescer)
    _closing: TaskPacer = attrs.field(factory=lambda: TaskPacer(CLOSE_BATCH))
    _opened: ParkingLot = attrs.field(factory=ParkingLot)

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        rates = AddressRates(limits.quota_window_num, limits.quota_window_size_seconds)
        self.acceptor = Acceptor(
            Admission(limits), self.now, self._find_oldest, rates, self.metrics
        )
        self._memory = RequestMemory(_request_memory_limit(self.limits), self.now)
        self.metrics.register_function(REQUEST_MEMORY, lambda: self._memory.used)

    def bind(
        self,
        name: str,
        host: str,
        port: int,
        *,
        limits: Limits | None = None,
        protected: bool = False,
        tls: "ServerTls | None" = None,
    ) -> Address:
        """Bind a listener's address; connections are refused until :meth:`accept`.

        ``limits`` apply to this listener instead of those that the node's limits have for it. A
        ``protected`` listener still accepts when other listeners' connections use up the node's
        limit. With ``tls``, connections are encrypted.
        """
        own = limits or self.limits.of_listener(name)
        listener = Listener(
            name=name,
            sock=bound_socket(host, port, own),
            limits=own,
            protected=protected,
            rate=Rate(own.max_connection_creation_rate),
            connections_accepted=self.metrics.cell(CONNECTIONS_MADE, name),
            tls=tls,
            guests=Guests(self.now),
        )
        self.metrics.register_function(
            CONNECTIONS, lambda: self.acceptor.admission.per_listener[name], name
        )
        self.listeners[name] = listener
        return listener.address

    def relimit(self, limits: Limits) -> None:
        """Change the limits on connections and on their rate; existing connections stay open."""
        before = self.limits
        self.limits = limits
        for name, listener in self.listeners.items():
            if listener.limits is before.of_listener(name):
                listener.limits = own = limits.of_listener(name)
                listener.rate.per_second = own.max_connection_creation_rate
        self.acceptor.relimit(limits)

    def limit_addresses(self, quotas: Quotas) -> None:
        """Limit the rates at which addresses open connections, according to the quotas."""
        self.acceptor.rates.follow(quotas)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, then close every socket."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery, self._start = nursery, nursery.start_soon
                self._start_serving = self._serve_in_task
                nursery.start_soon(self._readiness.run)
                nursery.start_soon(self._close_idle)
                nursery.start_soon(self._coalescer.run)
                nursery.start_soon(self._closing.run)
                nursery.start_soon(self.acceptor.close_throttled)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            for connection in [*self.connections]:  # those that have no task
                self._close(connection)
            self._readiness.close()
            self.close()

    def address(self, name: str) -> Address:
        """Return the address of a bound listener."""
        return self.listeners[name].address

    def accept(self, name: str, for_connection: ForConnection) -> None:
        """Start to serve a bound listener; allowed only while :meth:`run` is running.

        Raises OSError if another program that bound the same address has begun to listen on it.
        """
        if self._nursery is None:
            raise RuntimeError("the service is not running")
        listener = self.listeners[name]
        listener.listen()
        if listener.tls is not None:
            self._nursery.start_soon(listener.tls.run)
        on_accepted = partial(self._open, for_connection)
        self._nursery.start_soon(self.acceptor.run, listener, on_accepted)

    def stop_accepting(self) -> None:
        """Refuse new connections on all listeners; open connections stay open."""
        for listener in self.listeners.values():
            if listener.sock.fileno() >= 0:
                trio.lowlevel.notify_closing(listener.sock)
                listener.sock.close()

    def close(self) -> None:
        """Release every address."""
        for listener in self.listeners.values():
            listener.sock.close()

    def _open(
        self,
        for_connection: ForConnection,
        listener: Listener,
        sock: socket.socket,
        host: str,
        port: int,
    ) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # the peer may already be gone
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        requests = for_connection(listener.name, host, port)
        framer = Framer(listener.limits.socket_request_max_bytes, self._buffers)
        wire: ByteSocket = sock
        sender = Sender(sock, self._threads, self.now)
        if listener.tls is not None:
            wire = listener.tls.wrap(sock)
            sender = Sender(wire, self._threads, self.now, sendfile=None)
        connection = Connection(
            sock=wire,
            listener=listener,
            host=host,
            port=port,
            requests=requests,
            framer=framer,
            sender=sender,
            memory=self._memory,
            buffers=self._buffers,
            coalescer=self._coalescer,
            now=self.now,
            last_active=self.now(),
            start=self._start,
            answers_at_once=self.answers_at_once,
        )
        connection.readiness = self._readiness.watch(sock.fileno(), connection.on_hang_up)
        if isinstance(requests, LoginRequired):
            requests.limit(framer, listener.guests)
            listener.guests.enter(connection)
        self.connections.add(connection)
        self._opened.unpark_all()
        turns = Turns(connection)
        start = partial(self._start_serving, turns)
        connection.readiness.start_when_needed(turns.serve, start)
        if listener.tls is not None or isinstance(requests, LoginRequired):
            connection.readiness.start_task()  # for the handshake, or for the time limit

    def _serve_in_task(self, turns: Turns) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, turns)

    async def _serve(self, turns: Turns) -> None:
        connection = turns.connection
        try:
            with connection.scope:
                if connection.listener.tls is not None:
                    await connection.listener.tls.admit(connection)
                await turns.run()
            if connection.failure is not None:
                raise connection.failure
            # Connections that hung up were already woken, a few at a time.
            if not connection.readiness.ended:
                await self._closing.wait_turn()
        except Disconnect as reason:
            connection.reason = str(reason)
        except OSError as error:
            logger.debug("connection lost peer=%s reason=%s", connection.peer, error)
        except Exception:
            logger.exception("connection failed peer=%s", connection.peer)
        finally:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        connection.listener.guests.leave(connection)
        if connection.reason:
            logger.info(
                "connection closed listener=%s peer=%s reason=%s",
                connection.listener.name,
                connection.peer,
                connection.reason,
            )
        connection.drop_waiting()
        connection.drop_parked()
        connection.requests.on_closed()
        connection.sender.stop_draining()
        connection.sender.flush()
        connection.framer.drop()
        self._memory.free(connection.claimed, connection)
        self._readiness.unwatch(connection.readiness)
        connection.sock.close()
        self.connections.discard(connection)
        self.acceptor.on_closed(connection.listener, connection.host)

    async def _find_oldest(self) -> Connection | None:
        """Return the least recently used unprotected connection."""
        slices = Slices(self.now)
        while True:
            oldest: Connection | None = None
            for connection in list(self.connections):
                if not (connection.listener.protected or connection.reason) and (
                    oldest is None or connection.used_at < oldest.used_at
                ):
                    oldest = connection
                await slices.pause()
            # The connection may have ended meanwhile, or may have been closed for another listener.
            if oldest is None or (oldest in self.connections and not oldest.reason):
                return oldest

    async def _close_idle(self) -> None:
        """Close connections unused for the idle time; sleep until the next one may be due."""
        while True:
            self._buffers.trim()
            if not self.connections:
                await self._opened.park()
            due = shortest = min(listener.idle_s for listener in self.listeners.values())
            slices = Slices(self.now)
            for connection in list(self.connections):
                remaining_s = connection.used_at + connection.listener.idle_s - self.now()
                if remaining_s > 0 or connection.is_busy:
                    due = min(due, remaining_s)
                elif not connection.reason:
                    connection.close("idle")
                await slices.pause()
            await trio.sleep(max(due, shortest / _IDLE_SCANS))


def _request_memory_limit(limits: Limits) -> int:
    """Return the configured limit; if it is "no limit", a quarter of this machine's memory."""
    if limits.queued_max_request_bytes > 0:
        return limits.queued_max_request_bytes
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 1 << 30
