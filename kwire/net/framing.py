"""Framing: bytes of a connection in, whole frames out. Pure: no socket, no clock.

A frame is a four-byte size and that many bytes. Memory grows with the bytes that have arrived, not
with the announced size: an incomplete frame is in a buffer of at most four times its bytes so far,
or in one of a few pooled buffers. A small frame is a slice of the chunk in which it arrived; the
bytes of a large frame are received straight into its own buffer, where its records stay.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

_INT32: Final = Struct(">i")
_FIRST_BUFFER: Final = 4096
_GROWTH: Final = 4
_NOTHING: Final = memoryview(b"")
POOLED_BUFFERS_MAX: Final = 64
"""The most pooled buffers in use at a time; further large frames get new memory."""
POOLED_BUFFER_BYTES: Final = 2 << 20
"""Room for a request with the usual 1 MB of records and its header."""
_POOLED_FROM: Final = 16 << 10
"""The bytes of a frame that must have arrived before the frame gets a pooled buffer."""

TARGET_BYTES_MAX: Final = 512 << 10
"""The most bytes of a large frame that one call receives; with TLS it also decrypts them."""


class Disconnect(Exception):
    """The connection cannot continue; the text is the reason, which is logged in one line.

    ``answer``: the parts of a final response, which is sent before the connection is closed.
    """

    def __init__(self, reason: str, answer: Sequence[bytes | memoryview] = ()) -> None:
        super().__init__(reason)
        self.answer = answer


class PooledBuffer(bytearray):
    """A reusable buffer that belongs to a :class:`BufferPool`."""

    __slots__ = ()


class BufferPool:
    """The reusable buffers that all connections of a node share.

    Allocating memory for each large frame would cost two to four times as much as receiving it,
    nearly all of that in page faults. The pool keeps as many buffers as were in use at the same
    time since the last :meth:`trim`.
    """

    __slots__ = ("_free", "_in_use", "_peak")

    def __init__(self) -> None:
        self._free: list[PooledBuffer] = []
        self._in_use = 0
        self._peak = 0

    @property
    def free_count(self) -> int:
        return len(self._free)

    def take(self, size: int) -> PooledBuffer | None:
        """Return a buffer of at least ``size`` bytes; None if it is too large or all are in use."""
        if size > POOLED_BUFFER_BYTES or self._in_use >= POOLED_BUFFERS_MAX:
            return None
        self._in_use += 1
        self._peak = max(self._peak, self._in_use)
        return self._free.pop() if self._free else PooledBuffer(POOLED_BUFFER_BYTES)

    def give(self, buffer: bytearray) -> None:
        """Return a pooled buffer; it is dropped if a view of it is still exported."""
        if not isinstance(buffer, PooledBuffer):
            return
        self._in_use -= 1
        try:
            buffer.append(0)
            buffer.pop()
        except BufferError:
            return
        self._free.append(buffer)

    def release(self, frame: memoryview) -> None:
        """Return the buffer of a frame, if it has its own, once its response is sent."""
        buffer = frame.obj
        if isinstance(buffer, bytearray):
            frame.release()
            self.give(buffer)

    def trim(self) -> None:
        """Free the buffers that were not needed since the last call."""
        del self._free[max(0, self._peak - self._in_use) :]
        self._peak = self._in_use


class Framer:
    """Splits one connection's bytes into frames."""

    __slots__ = (
        "_body",
        "_buffers",
        "_chunk",
        "_have",
        "_pos",
        "_size",
        "max_bytes",
        "partial",
        "ready",
    )

    def __init__(self, max_bytes: int, buffers: BufferPool | None = None) -> None:
        self.max_bytes = max_bytes
        """The largest size of the next frames."""
        self._buffers = buffers
        self._chunk = _NOTHING
        self._pos = 0
        self._body: bytearray | None = None
        self._have = 0
        self._size = 0
        self.partial = False
        """True if bytes have arrived that :meth:`take` has not returned."""
        self.ready = False
        """True if another whole frame has arrived after the frame that :meth:`take` returned."""

    @property
    def buffer_bytes(self) -> int:
        """The size in bytes of the incomplete frame's buffer, 0 without a buffer."""
        return 0 if self._body is None else len(self._body)

    def feed(self, data: bytes) -> None:
        """Add received bytes; only allowed while :meth:`target` returns None."""
        if self.partial:
            data = bytes(self._chunk[self._pos :]) + data
        self._chunk, self._pos, self.partial = memoryview(data), 0, bool(data)

    def target(self) -> memoryview | None:
        """Return the memory for a large frame's next bytes; None if :meth:`feed` takes them."""
        if self._body is None:
            return None
        if self._have == len(self._body):
            self._body = self._enlarge(self._body)
        return memoryview(self._body)[self._have : min(self._size, self._have + TARGET_BYTES_MAX)]

    def advance(self, count: int) -> None:
        """Advance by the bytes that the caller wrote to the :meth:`target`."""
        self._have += count

    def take_first(self, data: bytes) -> memoryview | None:
        """Add received bytes and return the next whole frame; often they are exactly one frame."""
        if not self.partial and len(data) > _INT32.size:
            (size,) = _INT32.unpack_from(data)
            if size == len(data) - _INT32.size <= self.max_bytes:
                self.ready = False
                return memoryview(data)[_INT32.size :]
        self.feed(data)
        return self.take()

    def take(self) -> memoryview | None:
        """Return the next whole frame, without its size, or None.

        Raises Disconnect if the size is not positive or over the limit.
        """
        if self._body is not None:
            return self._take_body()
        chunk = self._chunk
        start = self._pos + 4
        if start > len(chunk):
            return None
        (size,) = _INT32.unpack_from(chunk, self._pos)
        if not 0 < size <= self.max_bytes:
            raise Disconnect(_wrong_size(size, bytes(chunk[self._pos : start])))
        end = start + size
        if end > len(chunk):
            self._begin(chunk[start:], size)
            return None
        self._pos = end
        if end < len(chunk):
            self.ready = self._has_frame(chunk, end)
        else:  # So that an idle connection holds no memory.
            self._chunk, self._pos, self.ready, self.partial = _NOTHING, 0, False, False
        return chunk[start:end]

    @staticmethod
    def _has_frame(chunk: memoryview, pos: int) -> bool:
        """Return whether a whole frame begins at ``pos``."""
        start = pos + 4
        if start > len(chunk):
            return False
        (size,) = _INT32.unpack_from(chunk, pos)
        return bool(0 < size <= len(chunk) - start)

    def drop(self) -> None:
        """Return the buffer to the pool, because the connection is closed."""
        if self._body is not None and self._buffers is not None:
            self._buffers.give(self._body)
        self._body = None

    def _enlarge(self, part: bytearray | memoryview) -> bytearray:
        """Return a larger buffer with the frame's bytes so far."""
        have = len(part)
        body: bytearray | None = None
        if have >= _POOLED_FROM and self._buffers is not None:
            body = self._buffers.take(self._size)
        if body is None:
            body = bytearray(min(self._size, max(_GROWTH * have, _FIRST_BUFFER)))
        memoryview(body)[:have] = part
        return body

    def _begin(self, part: memoryview, size: int) -> None:
        self._size, self._have = size, len(part)
        self._body = self._enlarge(part)
        self._chunk, self._pos = _NOTHING, 0

    def _take_body(self) -> memoryview | None:
        if self._have < self._size or self._body is None:
            return None
        frame = memoryview(self._body)[: self._size]
        self._body, self.partial = None, False
        return frame


def _wrong_size(size: int, raw: bytes) -> str:
    if raw[:2] == b"\x16\x03":
        return "a TLS hello on a listener without TLS"
    if raw.isascii() and raw.decode().strip().isalpha():
        return f"text instead of a frame: {raw.decode()!r} (HTTP?)"
    return f"a frame of {size} bytes"
