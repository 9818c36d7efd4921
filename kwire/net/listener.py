"""A listening socket, its limits, and the handlers of its connections' requests."""

import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import attrs

from kwire.metrics import Cell
from kwire.net.framing import Framer
from kwire.net.limits import Limits, Rate
from kwire.net.pending_logins import Guests
from kwire.net.send import Part
from kwire.net.waiting_answers import Unfinished
from kwire.waits import Slow

Answer: TypeAlias = Slow[Unfinished[Sequence[Part]] | Sequence[Part] | None] | Sequence[Part] | None
"""The parts to send, None for no answer, or the rest of the work that must be awaited."""

if TYPE_CHECKING:
    from kwire.net.tls.server_tls import ServerTls


class ConnectionRequests(Protocol):
    """The handler of one connection's requests."""

    muted_s: float

    def answer_now(self, frame: memoryview) -> Answer:
        """Return the parts to send, None for no answer, or the rest of the work to await.

        Raises Disconnect to end the connection.
        """

    def only_reads(self, frame: memoryview) -> bool:
        """Return whether a request changes nothing, so that a gone client may cancel it."""

    def may_begin_early(self, frame: memoryview) -> bool:
        """Return whether a request may begin while the answers to earlier requests wait."""

    def identify(self, user: str) -> None:
        """Record the client's user name, taken from its certificate, before the first request."""

    def on_closed(self) -> None:
        """Clean up, because the connection is closed."""


class LoginRequired(ABC):
    """Requests of a client that must log in before it is served."""

    @abstractmethod
    def limit(self, framer: Framer, guests: Guests) -> None:
        """Limit the size of frames until the client has authenticated; then notify ``guests``.

        ``framer`` is the new connection's.
        """


ForConnection = Callable[[str, str, int], ConnectionRequests]
"""Returns the handler of a connection's requests, by listener name and the peer's host and port."""


async def finish_answer(answer: Answer) -> Sequence[Part] | None:
    """Await the rest of the work, if any, and return the parts to send; None for no answer."""
    while isinstance(answer, Slow):
        answer = await answer.finish()
    return answer


class Address(NamedTuple):
    """The host and port of a listener on this machine."""

    host: str
    port: int


@attrs.define(eq=False, repr=False)
class Listener:
    """A bound socket and its limits; it refuses connections until :meth:`listen`."""

    name: str
    sock: socket.socket
    limits: Limits
    protected: bool
    """True if, when the node is full, its connections replace idle connections of other listeners.
    """
    rate: Rate
    connections_accepted: Cell
    tls: "ServerTls | None" = None
    """The listener's TLS; None if its connections are not encrypted."""
    guests: Guests = attrs.field(factory=Guests)
    """The connections whose clients must log in but have not logged in yet."""

    def listen(self) -> None:
        """Let the kernel accept connections; raise OSError if another socket already listens."""
        self.sock.listen(self.limits.socket_listen_backlog_size)

    @property
    def idle_s(self) -> float:
        idle_ms = self.limits.connections_max_idle_ms
        return idle_ms / 1000 if idle_ms >= 0 else math.inf

    @property
    def address(self) -> Address:
        host, port = self.sock.getsockname()[:2]
        return Address(host, port)


def bound_socket(host: str, port: int, limits: Limits) -> socket.socket:
    """Return a bound socket, which refuses connections; an empty host means every interface."""
    family, address = _resolve(host, port)
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
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolve(host: str, port: int) -> tuple[int, tuple[object, ...]]:
    """Return the address family and the address to bind; IPv4 is preferred for a name."""
    if not host:
        if socket.has_dualstack_ipv6():
            return socket.AF_INET6, ("::", port)
        return socket.AF_INET, ("0.0.0.0", port)
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(infos, key=lambda info: info[0] != socket.AF_INET)
    return family, address
