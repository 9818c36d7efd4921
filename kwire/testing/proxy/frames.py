"""Frames of a stream: read whole, or passed on in pieces so that they need little memory."""

from struct import Struct
from typing import Final

import attrs
import trio
from trio.abc import ReceiveStream, SendStream

from kwire.net.framing import Disconnect

SIZE: Final = Struct(">i")
PIECE_BYTES: Final = 64 << 10
FRAME_BYTES_MAX: Final = 128 << 20
"""The largest frame that is read whole; Kafka's clients send up to 100 MB and fetch up to 50 MB."""


@attrs.define(eq=False, repr=False)
class FrameReader:
    """The frames that arrive on one stream."""

    stream: ReceiveStream
    _buffer: bytearray = attrs.field(factory=bytearray)

    async def begin(self) -> int | None:
        """Wait for a frame and return its size; None if the stream ends before one."""
        if not await self._fill(SIZE.size):
            return None
        size: int = SIZE.unpack_from(self._buffer)[0]
        del self._buffer[: SIZE.size]
        if size < 0:
            raise Disconnect(f"a frame of {size} bytes")
        return size

    async def peek(self, count: int) -> bytes:
        """Return the first bytes of the frame without consuming them."""
        await self._require(count)
        return bytes(self._buffer[:count])

    async def read(self, size: int) -> memoryview:
        """Return the whole frame."""
        if size > FRAME_BYTES_MAX:
            raise Disconnect(f"a frame of {size} bytes is larger than {FRAME_BYTES_MAX}")
        await self._require(size)
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        return memoryview(frame)

    async def pass_on(self, size: int, target: SendStream) -> None:
        """Pass the whole frame with its size on to another stream, as it arrives."""
        await target.send_all(SIZE.pack(size))
        while size:
            if not self._buffer:
                await self._require(1)
            piece = bytes(self._buffer[:size])
            del self._buffer[:size]
            await target.send_all(piece)
            size -= len(piece)

    async def _require(self, count: int) -> None:
        if not await self._fill(count):
            raise Disconnect("the connection ended within a frame")

    async def _fill(self, count: int) -> bool:
        while len(self._buffer) < count:
            try:
                more = await self.stream.receive_some(PIECE_BYTES)
            except trio.BrokenResourceError:
                return False
            if not more:
                return False
            self._buffer += more
        return True
