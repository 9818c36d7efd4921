"""A connection to another node: pipelined requests, and their responses in order.

It uses the highest version that both nodes support. A call sends its request itself; a task sends
only the bytes that the socket does not take at once. When the connection ends, every call in flight
fails with :class:`ConnectionLost`; the caller decides whether and when to reconnect. On Linux, a
connection ends after the other host has acknowledged nothing for 5 seconds.
"""

import socket
import sys
from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs
import trio
from trio.lowlevel import ParkingLot, checkpoint, wait_readable

from kwire.codec.apis import BY_KEY
from kwire.codec.frame import Body, read_response, request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.primitives import EncodeError, MalformedError
from kwire.codec.schema import Request, spec_of
from kwire.errors import UnsupportedVersion
from kwire.net.byte_socket import ByteSocket
from kwire.net.framing import Disconnect, Framer
from kwire.net.send import Sender

if TYPE_CHECKING:
    from kwire.net.node_login import NodeLogin
    from kwire.net.tls.client_tls import ClientTls

Resp = TypeVar("Resp")

SOFTWARE: Final = "kwire"
RESPONSE_BYTES_MAX: Final = 256 << 20
_RECEIVED_BYTES: Final = 64 << 10
CLOSED: Final = "closed by the other node"
"""The reason of a connection that ended without an error, as when a listener expects TLS."""
UNACKNOWLEDGED_MS: Final = 5000
"""The longest time for which the other host may leave sent data unacknowledged.

After a cut, TCP resends with delays that double: a link cut for 13 seconds would carry requests
only 25 seconds after the cut. A new connection carries them within 2 seconds.
"""
_API_VERSIONS: Final = 18
_LOGIN: Final = (17, 36)
"""The API keys of a login: SaslHandshake and SaslAuthenticate."""
_RENEWAL: Final = 0.85
"""The fraction of a session's lifetime after which it is renewed."""
_ENDS: Final = (OSError, Disconnect, MalformedError)


class ConnectionLost(Exception):
    """The connection to the other node failed or ended.

    ``refused``: the node's host refused the connection, because no process listens on that port.
    """

    refused = False


def _is_refused(error: BaseException) -> bool:
    """Return whether every address of the host refused a connection."""
    attempts = error.__cause__
    if not isinstance(attempts, ExceptionGroup):
        return False
    return all(isinstance(attempt, ConnectionRefusedError) for attempt in attempts.exceptions)


@attrs.define(eq=False, repr=False)
class PendingCall(Generic[Resp]):
    """A request that has been sent or is about to be, and its response."""

    correlation_id: int
    key: int
    version: int
    done: trio.Event = attrs.field(factory=trio.Event)
    """Set when the response has arrived or the connection has ended."""
    response: Resp | None = None


@attrs.define(eq=False, repr=False)
class NodeClient:
    """One connection; :meth:`run` serves it until it ends."""

    host: str
    port: int
    client_id: str
    tls: "ClientTls | None" = None
    """None if the other node's listener is not encrypted."""
    versions: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """The first and last version that the other node advertises, by API key."""
    login: "NodeLogin | None" = None
    """The login at the other node; None if it requires none."""
    lost: bool = False
    _sender: Sender | None = None
    """The sender of the connected socket; it holds the requests that are not sent yet."""
    _is_sending: bool = False
    """True while the task sends; meanwhile the requests of calls queue up behind it."""
    _in_flight: deque[PendingCall[Body]] = attrs.field(factory=deque)
    """The requests in flight, oldest first: responses must come in this order."""
    _to_send: ParkingLot = attrs.field(factory=ParkingLot)
    _queue: deque[tuple[PendingCall[Body], bytes]] | None = None
    """The requests that wait for a login to end; None if no login is in progress."""
    _correlation_id: int = 0
    """The correlation id of the last request."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, learn the versions, report started, serve; raise ConnectionLost at the end."""
        try:
            sock = await self._connect()
            with closing(sock):
                sender = self._sender = Sender(sock)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_rest, sender)
                    nursery.start_soon(self._read, sock)
                    await self._learn_versions()
                    if self.login is not None:
                        lifetime_s = await self._log_in(self.login)
                        nursery.start_soon(self._renew_login, self.login, lifetime_s)
                    task_status.started()
        except _ENDS as error:
            lost = ConnectionLost(f"{self.host}:{self.port}: {error}")
            lost.refused = _is_refused(error)
            raise lost from error
        except BaseExceptionGroup as group:
            ends, rest = group.split(_ENDS)
            if ends is None:
                raise
            if rest is not None:  # a bug, or the call was cancelled at the same moment
                raise rest from None
            # A node that refuses a login hangs up at once; the refusal is the reason to report.
            reasons = [str(end) for end in ends.exceptions]
            reason = next((each for each in reasons if each != CLOSED), CLOSED)
            raise ConnectionLost(f"{self.host}:{self.port}: {reason}") from group
        finally:
            self.lost = True
            while self._in_flight:
                self._in_flight.popleft().done.set()
            for call, _ in self._queue or ():
                call.done.set()

    async def call(self, request: Request[Resp], *, version: int | None = None) -> Resp:
        """Send a request and wait for its response; cancelling a call does not affect the others.

        Raises UnsupportedVersion if no version that the other node supports can carry the request.
        """
        call = self.begin(request, version=version)
        await call.done.wait()
        return self.end(call)

    def begin(self, request: Request[Resp], *, version: int | None = None) -> PendingCall[Resp]:
        """Send a request, or let the task send it after requests that are not sent yet.

        Raises the same as :meth:`call`, which also waits.
        """
        key = spec_of(type(request)).api_key
        assert key is not None
        if version is None:
            version = self._version(key)
        sender = self._sender
        if self.lost or sender is None:
            raise ConnectionLost(f"{self.host}:{self.port}")
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        call: PendingCall[Resp] = PendingCall(correlation_id, key, version)
        try:
            frame = request_frame(key, version, correlation_id, self.client_id, request)
        except EncodeError as error:
            if version >= BY_KEY[key].stable:
                raise
            text = f"{BY_KEY[key].name}: version {version} cannot carry the request: {error}"
            raise UnsupportedVersion(text) from error
        if self._queue is not None and key not in _LOGIN:
            self._queue.append((call, frame))
        else:
            self._send(sender, call, frame)
        return call

    def _send(self, sender: Sender, call: PendingCall[Resp], frame: bytes) -> None:
        self._in_flight.append(call)
        is_first = not sender.unsent and not self._is_sending
        sender.unsent.append(frame)
        if is_first:
            sender.flush()
            if sender.unsent:
                self._to_send.unpark()

    def end(self, call: PendingCall[Resp]) -> Resp:
        """Return the response of a call that is done; raise ConnectionLost if it has none."""
        if call.response is None:
            raise ConnectionLost(f"{self.host}:{self.port}")
        return call.response

    def _version(self, key: int) -> int:
        api = BY_KEY[key]
        first, last = self.versions.get(key, (0, -1))
        version = min(api.stable, last)
        if version < max(api.first, first):
            raise UnsupportedVersion(f"{api.name}: the other node supports {first} to {last}")
        return version

    async def _connect(self) -> ByteSocket:
        sock = await self._connect_plain()
        if self.tls is None:
            return sock
        try:
            return await self.tls.shake_hands(sock, self.host)
        except BaseException:
            sock.close()
            raise

    async def _connect_plain(self) -> socket.socket:
        try:
            stream = await trio.open_tcp_stream(self.host, self.port)
        except UnicodeError as error:  # the host name comes from other nodes and may be any text
            raise Disconnect(f"not a host name: {error}") from error
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        with suppress(OSError):  # the peer may already be gone
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        return sock

    async def _learn_versions(self) -> None:
        request = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="1")
        response = await self.call(request, version=BY_KEY[_API_VERSIONS].stable - 1)
        if response.error_code:
            raise Disconnect(f"ApiVersions: error {response.error_code}")
        self.versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    async def _log_in(self, login: "NodeLogin") -> float:
        """Authenticate while other requests wait; return the seconds until the next login."""
        assert self._sender is not None
        self._queue = deque()
        lifetime_s = await login.log_in(self.call, f"{self.host}:{self.port}")
        waiting, self._queue = self._queue, None
        for call, frame in waiting:
            self._send(self._sender, call, frame)
        return lifetime_s

    async def _renew_login(self, login: "NodeLogin", lifetime_s: float) -> None:
        """Authenticate again before each session ends (KIP-368)."""
        while lifetime_s:
            await trio.sleep(lifetime_s * _RENEWAL)
            lifetime_s = await self._log_in(login)

    async def _send_rest(self, sender: Sender) -> None:
        """Send the bytes that the socket did not take."""
        while True:
            self._is_sending = True
            while sender.unsent:
                await sender.send(())
            self._is_sending = False
            await self._to_send.park()

    async def _read(self, sock: ByteSocket) -> None:
        framer = Framer(RESPONSE_BYTES_MAX)
        while True:
            target = framer.target()
            try:
                if target is None:
                    data = sock.recv(_RECEIVED_BYTES)
                    count, most = len(data), _RECEIVED_BYTES
                    framer.feed(data)
                else:
                    count, most = sock.recv_into(target), len(target)
                    framer.advance(count)
            except BlockingIOError:
                await wait_readable(sock.fileno())
                continue
            if not count:
                raise Disconnect(CLOSED)
            while (frame := framer.take()) is not None:
                self._on_response(frame)
            if count < most:  # Otherwise more may have arrived, which TLS may already hold.
                await wait_readable(sock.fileno())
            else:
                await checkpoint()

    def _on_response(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise Disconnect("a response without a request")
        call = self._in_flight[0]
        correlation_id, response = read_response(call.key, call.version, frame)
        if correlation_id != call.correlation_id:
            raise Disconnect("a response out of order")
        self._in_flight.popleft()
        call.response = response
        call.done.set()
