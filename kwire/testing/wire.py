"""A raw client of the Kafka protocol: sends requests, or any bytes, and returns the responses.

It handles only frames and messages: no retries, no negotiation, no background work.
:class:`WireClient` blocks; :class:`TrioWireClient` is for tests that run inside trio.
"""

import socket
from struct import Struct
from typing import Final, Self, TypeVar

import trio

from kwire.codec.frame import Body, read_response, request_frame
from kwire.codec.schema import Request, spec_of

Resp = TypeVar("Resp")

_INT32: Final = Struct(">i")


class Closed(Exception):
    """The server closed the connection instead of answering."""


def key_of(request: object) -> int:
    """Return the API key of a request message."""
    key = spec_of(type(request)).api_key
    assert key is not None, type(request)
    return key


class _Numbered:
    """Assigns correlation ids, and remembers each request's API key and version."""

    def __init__(self, client_id: str | None) -> None:
        self.client_id = client_id
        self._sent: dict[int, tuple[int, int]] = {}
        self._next = 0

    def frame(self, request: object, version: int) -> tuple[int, bytes]:
        """Return a request's correlation id and its frame."""
        self._next += 1
        key = key_of(request)
        self._sent[self._next] = key, version
        return self._next, request_frame(key, version, self._next, self.client_id, request)

    def response(self, frame: bytes) -> tuple[int, Body]:
        (correlation_id,) = _INT32.unpack_from(frame)
        key, version = self._sent.pop(correlation_id)
        return read_response(key, version, frame)


class WireClient(_Numbered):
    """One blocking connection."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "wire",
        timeout_s: float = 30.0,
        source: str | None = None,
    ) -> None:
        """``source``: the address of this machine from which to connect."""
        super().__init__(client_id)
        own = None if source is None else (source, 0)
        self.sock = socket.create_connection((host, port), timeout_s, own)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def call(self, request: Request[Resp], version: int) -> Resp:
        """Send a request and return its response; raises Closed if the connection ends first."""
        expected = self.send(request, version)
        correlation_id, body = self.receive()
        assert correlation_id == expected
        response: Resp = body
        return response

    def send(self, request: object, version: int) -> int:
        """Send a request without waiting for its response; return its correlation id."""
        correlation_id, data = self.frame(request, version)
        self.sock.sendall(data)
        return correlation_id

    def receive(self) -> tuple[int, Body]:
        """Return the correlation id of the next response, and the response."""
        return self.response(self.read_frame())

    def send_bytes(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read_frame(self) -> bytes:
        """Return the next frame without its size."""
        (size,) = _INT32.unpack(self._exactly(4))
        return self._exactly(size)

    def is_closed(self) -> bool:
        """Return True once the server closes the connection, False if it sends bytes."""
        try:
            return not self.sock.recv(1)
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = self.sock.recv(count - len(data))
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not more:
                raise Closed(f"the connection ended after {len(data)} of {count} bytes")
            data += more
        return bytes(data)


class TrioWireClient(_Numbered):
    """One connection inside trio."""

    def __init__(self, stream: trio.SocketStream, client_id: str | None = "wire") -> None:
        super().__init__(client_id)
        self.stream = stream
        self._buffer = bytearray()

    @classmethod
    async def connect(cls, host: str, port: int, *, client_id: str | None = "wire") -> Self:
        return cls(await trio.open_tcp_stream(host, port), client_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.aclose()

    async def call(self, request: Request[Resp], version: int) -> Resp:
        """Send a request and return its response; raises Closed if the connection ends first."""
        expected = await self.send(request, version)
        correlation_id, body = await self.receive()
        assert correlation_id == expected
        response: Resp = body
        return response

    async def send(self, request: object, version: int) -> int:
        """Send a request without waiting for its response; return its correlation id."""
        correlation_id, data = self.frame(request, version)
        await self.stream.send_all(data)
        return correlation_id

    async def receive(self) -> tuple[int, Body]:
        """Return the correlation id of the next response, and the response."""
        return self.response(await self.read_frame())

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def read_frame(self) -> bytes:
        """Return the next frame without its size."""
        (size,) = _INT32.unpack(await self._exactly(4))
        return await self._exactly(size)

    async def is_closed(self) -> bool:
        """Return True once the server closes the connection, False if it sends bytes."""
        try:
            return not self._buffer and not await self.stream.receive_some(1)
        except trio.BrokenResourceError:
            return True

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                more = await self.stream.receive_some(65536)
            except trio.BrokenResourceError as error:
                raise Closed(str(error)) from error
            if not more:
                raise Closed(f"the connection ended after {len(self._buffer)} of {count} bytes")
            self._buffer += more
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data
