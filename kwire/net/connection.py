"""Framing: bytes of a connection in, whole frames out.  Pure: no socket, no clock.

A frame is four bytes of size and that many bytes.  Memory follows what arrived, never what was
announced: a frame that is not whole yet lies in a buffer of at most four times its bytes so far.
Small frames are slices of the chunk they came in; the bytes of a large one are received straight
into its own buffer, where its records stay.
"""

from struct import Struct
from typing import Final

_INT32: Final = Struct(">i")
_FIRST_BUFFER: Final = 4096
_GROWTH: Final = 4
_NOTHING: Final = memoryview(b"")


class Disconnect(Exception):
    """The connection cannot go on; the text says why, for the one log line about it."""


class Framer:
    """Cuts one connection's bytes into frames."""

    __slots__ = ("_body", "_chunk", "_have", "_max_bytes", "_pos", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunk = _NOTHING
        self._pos = 0
        self._body: bytearray | None = None
        self._have = 0
        self._size = 0

    @property
    def held(self) -> int:
        """Bytes of memory a frame in the making occupies."""
        return 0 if self._body is None else len(self._body)

    @property
    def partial(self) -> bool:
        """Whether something of a frame is there, but not all of it."""
        return self._body is not None or self._pos < len(self._chunk)

    def feed(self, data: memoryview) -> None:
        """Take bytes as they came; they are copied.  Only while there is no :meth:`target`."""
        if self._pos < len(self._chunk):
            self._chunk = memoryview(bytes(self._chunk[self._pos :]) + data)
        else:
            self._chunk = memoryview(bytes(data))
        self._pos = 0

    def target(self) -> memoryview | None:
        """Where the next bytes of a large frame go, or None: then they are to be fed."""
        if self._body is None:
            return None
        if self._have == len(self._body):
            grown = bytearray(min(self._size, _GROWTH * self._have))
            grown[: self._have] = self._body
            self._body = grown
        return memoryview(self._body)[self._have :]

    def filled(self, count: int) -> None:
        """So many bytes were written to the :meth:`target`."""
        self._have += count

    def take(self) -> memoryview | None:
        """The next whole frame, without its size; Disconnect if it cannot be one."""
        if self._body is not None:
            return self._take_body()
        chunk = self._chunk
        start = self._pos + 4
        if start > len(chunk):
            return None
        (size,) = _INT32.unpack_from(chunk, self._pos)
        if not 0 < size <= self._max_bytes:
            raise Disconnect(_wrong_size(size, bytes(chunk[self._pos : start])))
        end = start + size
        if end > len(chunk):
            self._begin(chunk[start:], size)
            return None
        self._pos = end
        return chunk[start:end]

    def _begin(self, part: memoryview, size: int) -> None:
        have = len(part)
        body = bytearray(min(size, max(_GROWTH * have, _FIRST_BUFFER)))
        body[:have] = part
        self._body, self._have, self._size = body, have, size
        self._chunk, self._pos = _NOTHING, 0

    def _take_body(self) -> memoryview | None:
        if self._have < self._size or self._body is None:
            return None
        frame = memoryview(self._body)
        self._body = None
        return frame


def _wrong_size(size: int, raw: bytes) -> str:
    if raw[:2] == b"\x16\x03":
        return "a TLS hello on a listener without TLS"
    if raw.isascii() and raw.decode().strip().isalpha():
        return f"text instead of a frame: {raw.decode()!r} (HTTP?)"
    return f"a frame of {size} bytes"
