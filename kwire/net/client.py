"""A connection to another node: requests in, responses out, in order and pipelined.

The highest version that both sides speak is used.  When the connection ends, every waiting call
fails with :class:`ConnectionLost`; the caller decides whether and when to connect again.
"""

import socket
from collections import deque
from contextlib import suppress
from typing import Any, Final

import attrs
import trio
from trio.lowlevel import ParkingLot, wait_readable

from kwire.codec.apis import BY_KEY
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.primitives import EncodeError, MalformedError
from kwire.codec.schema import spec_of
from kwire.errors import UnsupportedVersion
from kwire.net.framing import Disconnect, Framer
from kwire.net.send import Sender

SOFTWARE: Final = "kwire"
RESPONSE_BYTES_MAX: Final = 256 << 20
_RECEIVED_BYTES: Final = 64 << 10
_API_VERSIONS: Final = 18
_ENDS: Final = (OSError, Disconnect, MalformedError)


class ConnectionLost(Exception):
    """The connection to the other node failed or ended.

    ``refused``: its host refused the connection, because no process listens on that port.
    """

    refused = False


def _is_refused(error: BaseException) -> bool:
    """Whether every address of the host refused a connection."""
    attempts = error.__cause__
    if not isinstance(attempts, ExceptionGroup):
        return False
    return all(isinstance(attempt, ConnectionRefusedError) for attempt in attempts.exceptions)


@attrs.define(eq=False)
class _Waiting:
    """A request that was sent, or is about to be."""

    correlation_id: int
    key: int
    version: int
    done: trio.Event = attrs.field(factory=trio.Event)
    response: Any = None


@attrs.define(eq=False)
class NodeClient:
    """One connection; :meth:`run` serves it until it ends."""

    host: str
    port: int
    client_id: str
    versions: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """The versions that the other node advertised, first and last, by API key."""
    lost: bool = False
    _outbox: list[bytes] = attrs.field(factory=list)
    _waiting: deque[_Waiting] = attrs.field(factory=deque)
    _to_send: ParkingLot = attrs.field(factory=ParkingLot)
    _next: int = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, learn the versions, report started, serve; raise ConnectionLost at the end."""
        try:
            sock = await self._connected()
            with sock:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, sock)
                    nursery.start_soon(self._read, sock)
                    await self._learn_versions()
                    task_status.started()
        except _ENDS as error:
            lost = ConnectionLost(f"{self.host}:{self.port}: {error}")
            lost.refused = _is_refused(error)
            raise lost from error
        except BaseExceptionGroup as group:
            ends, rest = group.split(_ENDS)
            if ends is None:
                raise
            if rest is not None:  # a bug, or this end was cancelled at the same moment
                raise rest from None
            raise ConnectionLost(f"{self.host}:{self.port}: {ends.exceptions[0]}") from group
        finally:
            self.lost = True
            while self._waiting:
                self._waiting.popleft().done.set()

    async def call(self, request: Any, *, version: int | None = None) -> Any:
        """Send a request and wait for its response; a cancelled call leaves the others alone.

        Raises UnsupportedVersion if no version that the other node speaks can carry the request.
        """
        key = spec_of(type(request)).api_key
        assert key is not None
        if version is None:
            version = self._version(key)
        waiting = self._enqueue(key, version, request)
        await waiting.done.wait()
        if waiting.response is None:
            raise ConnectionLost(f"{self.host}:{self.port}")
        return waiting.response

    def _enqueue(self, key: int, version: int, request: Any) -> _Waiting:
        if self.lost:
            raise ConnectionLost(f"{self.host}:{self.port}")
        self._next = (self._next + 1) & 0x7FFFFFFF
        waiting = _Waiting(self._next, key, version)
        try:
            frame = request_frame(key, version, self._next, self.client_id, request)
        except EncodeError as error:
            if version >= BY_KEY[key].stable:
                raise
            text = f"{BY_KEY[key].name}: version {version} cannot carry the request: {error}"
            raise UnsupportedVersion(text) from error
        self._outbox.append(frame)
        self._waiting.append(waiting)
        self._to_send.unpark()
        return waiting

    def _version(self, key: int) -> int:
        api = BY_KEY[key]
        first, last = self.versions.get(key, (0, -1))
        version = min(api.stable, last)
        if version < max(api.first, first):
            raise UnsupportedVersion(f"{api.name}: the other node speaks {first} to {last}")
        return version

    async def _connected(self) -> socket.socket:
        try:
            stream = await trio.open_tcp_stream(self.host, self.port)
        except UnicodeError as error:  # the host comes from other nodes and may be any text
            raise Disconnect(f"no name of a host: {error}") from error
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        with suppress(OSError):  # it may be gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    async def _learn_versions(self) -> None:
        asked = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="1")
        response = await self.call(asked, version=BY_KEY[_API_VERSIONS].stable - 1)
        if response.error_code:
            raise Disconnect(f"ApiVersions: error {response.error_code}")
        self.versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    async def _write(self, sock: socket.socket) -> None:
        sender = Sender(sock)
        while True:
            while self._outbox:
                requests, self._outbox = self._outbox, []
                await sender.send(requests)
            await self._to_send.park()

    async def _read(self, sock: socket.socket) -> None:
        framer = Framer(RESPONSE_BYTES_MAX)
        while True:
            await wait_readable(sock)
            target = framer.target()
            with suppress(BlockingIOError):
                if target is None:
                    data = sock.recv(_RECEIVED_BYTES)
                    count = len(data)
                    framer.feed(data)
                else:
                    count = sock.recv_into(target)
                    framer.filled(count)
                if not count:
                    raise Disconnect("closed by the other node")
            while (frame := framer.take()) is not None:
                self._answered(frame)

    def _answered(self, frame: memoryview) -> None:
        if not self._waiting:
            raise Disconnect("a response that nobody asked for")
        waiting = self._waiting.popleft()
        correlation_id, waiting.response = read_response(waiting.key, waiting.version, frame)
        waiting.done.set()
        if correlation_id != waiting.correlation_id:
            waiting.response = None
            raise Disconnect("a response out of order")
