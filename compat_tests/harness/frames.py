"""A proxy in front of a broker that passes whole requests on, and holds those of some APIs.

A held request reaches the broker when the test releases it, even if its client has closed the
connection meanwhile: as a request does that the network delays.  The requests behind it on the
same connection wait too.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

import attrs

from compat_tests.harness.wait import eventually

LOOPBACK = "127.0.0.1"
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
"""The API key, the version and the correlation id of a request."""


@attrs.define(eq=False)
class HeldRequest:
    """A request that waits in the proxy."""

    frame: bytes
    answer: bytes | None = None
    """The broker's response, once there is one."""
    _may_pass: threading.Event = attrs.field(factory=threading.Event)

    @property
    def correlation_id(self) -> int:
        return int(_HEAD.unpack_from(self.frame)[2])

    def release(self) -> None:
        self._may_pass.set()

    def wait_released(self) -> None:
        self._may_pass.wait()

    def wait_answered(self) -> bytes:
        """Let the request pass; return the broker's response without its size."""
        self.release()
        answer = eventually(lambda: self.answer, "an answer to a held request")
        assert answer is not None
        return answer


@attrs.define(eq=False)
class FrameProxy:
    """A proxy; ``target`` is the port of its broker."""

    target: int = 0
    requests: list[HeldRequest] = attrs.field(factory=list)
    """The requests that it holds, or has held."""
    _keys: frozenset[int] = frozenset()
    _listener: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def hold(self, *keys: int) -> None:
        """Hold the requests of these APIs from now on, and no others."""
        self._keys = frozenset(keys)

    def wait_held(self, count: int) -> HeldRequest:
        """Return the request with which it has held so many."""
        eventually(lambda: len(self.requests) >= count, f"{count} held requests")
        return self.requests[count - 1]

    def release_all(self) -> None:
        self.hold()
        for request in self.requests:
            request.release()

    def close(self) -> None:
        self.release_all()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Pass requests on until the client closes and none is held, or the broker closes."""
        try:
            far = socket.create_connection((LOOPBACK, self.target))
        except OSError:
            near.close()
            return
        requests: list[HeldRequest] = []
        threading.Thread(target=self._answer, args=(far, near, requests), daemon=True).start()
        with suppress(OSError):
            while frame := _read(near):
                if _HEAD.unpack_from(frame)[0] in self._keys:
                    request = HeldRequest(frame)
                    requests.append(request)
                    self.requests.append(request)
                    request.wait_released()
                far.sendall(_SIZE.pack(len(frame)) + frame)
        if not requests:
            _shut_down(far)

    def _answer(self, far: socket.socket, near: socket.socket, requests: list[HeldRequest]) -> None:
        """Pass responses on; the client of a held request may have closed its connection."""
        with suppress(OSError):
            while frame := _read(far):
                (correlation_id,) = _SIZE.unpack_from(frame)
                for request in requests:
                    if request.correlation_id == correlation_id and request.answer is None:
                        request.answer = frame
                with suppress(OSError):
                    near.sendall(_SIZE.pack(len(frame)) + frame)
        _shut_down(near)
        far.close()


def _read(connection: socket.socket) -> bytes:
    """Return a frame without its size; empty at the end of the connection."""
    size = _read_exactly(connection, _SIZE.size)
    return _read_exactly(connection, _SIZE.unpack(size)[0]) if size else b""


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        piece = connection.recv(size - len(pieces))
        if not piece:
            return b""
        pieces += piece
    return bytes(pieces)


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
