"""Sends an answer: joins small pieces and regions, and sends large regions with sendfile.

Rules: one call sends at most :data:`PIECE_BYTES`; after about that much work, other tasks run.
Before each piece of a region, the sender checks that the piece is in the page cache, because it may
be evicted while a slow client drains the socket. A piece that is not cached is sent in a thread of
its log directory, so that a disk that hangs delays only the answers from it. Regions are always
closed here, even after an error or a cancellation. If a file is shorter than its region requires,
the frame cannot be completed, and Disconnect is raised. A send that had to wait is repeated with
the same bytes, as TLS requires (:mod:`kwire.net.byte_socket`).
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import attrs
import trio
from trio.lowlevel import checkpoint, wait_writable

from kwire.log.disk import Disk
from kwire.log.threads import DiskThreads
from kwire.net.byte_socket import ByteSocket
from kwire.net.framing import Disconnect

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview

JOINED_BYTES: Final = 64 << 10
READ_BYTES: Final = 64 << 10
"""The size up to which a cached region is read and sent in one call with its neighbours."""
PIECE_BYTES: Final = 512 << 10
"""The most bytes that one call or one turn of a connection sends: about 0.15 ms on loopback."""
CALL_BYTES: Final = 16 << 10
"""The fixed cost of a call, in bytes, so that a turn with many small regions ends too."""
_JOINED_PARTS: Final = PIECE_BYTES // CALL_BYTES
"""The most parts that are read and sent in one call."""
_SENDFILE: Final = getattr(os, "sendfile", None) if sys.platform == "linux" else None
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class Source(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Return its descriptor, or -1 if there is none."""

    def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""


class Region(Protocol):
    """A range of a file that stays readable until closed (created by ``kwire.log``)."""

    @property
    def file(self) -> Source: ...
    @property
    def position(self) -> int: ...
    @property
    def disk(self) -> Disk:
        """The log directory whose threads read data that is not cached."""

    def __len__(self) -> int: ...

    def is_cached(self, position: int, size: int) -> bool:
        """Return whether this part of the file can be read without waiting for a disk."""

    def close(self) -> None: ...


Part = Bytes | Region
SendFile = Callable[[int, int, int, int], int]
"""``os.sendfile``: target, source, position, count; returns how many bytes were sent."""


def _join_cached(parts: Sequence[Part]) -> bytes | None:
    """Return the bytes of all parts; None if they are large or reading would wait for the disk.

    The regions are closed if all have been read.
    """
    if len(parts) > _JOINED_PARTS or sum(map(len, parts)) > JOINED_BYTES:
        return None
    joined: list[Bytes] = []
    regions: list[Region] = []
    for part in parts:
        if type(part) is bytes or isinstance(part, Bytes):
            joined.append(part)
        elif part.is_cached(part.position, len(part)):
            joined.append(_read_whole(part))
            regions.append(part)
        else:
            return None
    for region in regions:
        region.close()
    return b"".join(joined)


def _close(parts: Sequence[Part]) -> None:
    """Close the regions among ``parts``."""
    for part in parts:
        if not (type(part) is bytes or isinstance(part, Bytes)):
            part.close()


def _read_whole(region: Region) -> bytes:
    """Return all bytes of a cached region; raise Disconnect if the file has fewer."""
    size = len(region)
    data = region.file.read(region.position, size) if size else b""
    if len(data) < size:
        raise Disconnect(f"a region of {size} bytes has only {len(data)}")
    return data


@attrs.define(eq=False, repr=False)
class Sender:
    """Sends to one socket, for one task at a time."""

    sock: ByteSocket
    threads: DiskThreads = attrs.field(factory=DiskThreads)
    now: Callable[[], float] = trio.current_time
    sendfile: SendFile | None = _SENDFILE
    """None if the bytes of files must pass through this process, as with TLS."""
    active_at: float = float("-inf")
    """The time when the socket last became full, or the peer last made room in it."""
    unsent: list[Bytes] = attrs.field(factory=list)
    """Small answers that are held back, to be sent together with the next answer."""
    draining: trio.CancelScope | None = None
    """The scope of :meth:`drain`; None while only the connection's own task sends."""
    _turn_bytes: int = 0
    """The cost of this turn so far, in bytes."""

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send the answers held back and ``parts`` in one call; return the parts left to send.

        Usually nothing is left. If the data is large or not in the page cache, all of it is left;
        otherwise, the bytes that the kernel did not take are left. The regions that were sent are
        closed.
        """
        if self.draining is not None:
            self.stop_draining()
        if self.unsent:
            parts = [*self.unsent, *parts]
            self.unsent = []
        data = parts[0] if len(parts) == 1 else None
        if type(data) is not bytes or len(data) > JOINED_BYTES:
            try:
                data = _join_cached(parts)
            except BaseException:
                _close(parts)
                raise
            if data is None:
                return parts
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        return () if sent == len(data) else (data[sent:],)

    async def send(self, parts: Sequence[Part]) -> None:
        """Send the answers held back, then all of ``parts``; close the regions among them."""
        parts = self.send_now(parts)
        if not parts:
            return
        self._turn_bytes = 0
        last = len(parts) - 1
        joined: list[Bytes] = []
        size = 0
        try:
            for index, part in enumerate(parts):
                if size + len(part) <= JOINED_BYTES:
                    data = part if isinstance(part, Bytes) else await self._read_cached(part)
                    if data is not None:
                        joined.append(data)
                        size += len(data)
                        continue
                await self._send_bytes(b"".join(joined), _MORE)
                joined, size = [], 0
                if isinstance(part, Bytes):
                    await self._send_bytes(part, _MORE if index < last else 0)
                else:
                    await self._send_region(part)
            await self._send_bytes(b"".join(joined))
        finally:
            _close(parts)

    def flush(self) -> None:
        """Send as much of the answers held back as the kernel takes."""
        if not self.unsent:
            return
        data = b"".join(self.unsent)
        try:
            rest = data[self.sock.send(data) :]
        except BlockingIOError:
            rest = data
        except OSError:  # the connection is lost, and its own task will notice that
            rest = b""
        self.unsent = [rest] if rest else []

    async def drain(self, scope: trio.CancelScope) -> None:
        """Send the bytes that :meth:`flush` left, until the next :meth:`send` takes over."""
        with scope:
            while self.unsent and not scope.cancel_called:
                await self.wait_writable()
                self.flush()
        if self.draining is scope:
            self.draining = None

    def stop_draining(self) -> None:
        """Cancel :meth:`drain`; the caller sends the remaining bytes itself."""
        if self.draining is not None:
            self.draining.cancel()
            self.draining = None

    async def wait_writable(self) -> None:
        """Wait until the peer has made room for more bytes."""
        self.active_at = self.now()
        await wait_writable(self.sock.fileno())
        self.active_at = self.now()
        self._turn_bytes = 0

    async def _send_bytes(self, data: Bytes, flags: int = 0) -> None:
        """Send all of ``data``; ``MSG_MORE`` in ``flags`` means that more follows at once."""
        view = data
        while view:
            if self._turn_bytes:
                await self._pause()
            piece = view if len(view) <= PIECE_BYTES else memoryview(view)[:PIECE_BYTES]
            try:
                sent = self.sock.send(piece, flags)
            except BlockingIOError:
                await self.wait_writable()
                continue
            self._turn_bytes += sent + CALL_BYTES
            if sent == len(view):
                return
            view = memoryview(view)[sent:]

    async def _send_region(self, region: Region) -> None:
        """Send a file's bytes, without reading them into this process where possible."""
        position, remaining_bytes = region.position, len(region)
        while remaining_bytes:
            if self._turn_bytes:
                await self._pause()
            try:
                largest = READ_BYTES if self.sendfile is None else PIECE_BYTES
                piece_bytes = min(remaining_bytes, largest)
                sent = await self._send_piece(region, position, piece_bytes)
            except BlockingIOError:
                await self.wait_writable()
                continue
            if not sent:
                size = len(region)
                raise Disconnect(f"a region of {size} bytes has only {size - remaining_bytes}")
            position += sent
            remaining_bytes -= sent

    async def _read_cached(self, region: Region) -> bytes | None:
        """Return the bytes of a small region; None if it is large or not in the page cache.

        This saves a call, and a separate packet for the few bytes that follow the last region.
        """
        size = len(region)
        if not size:
            return b""
        if self._turn_bytes:
            await self._pause()
        if size > READ_BYTES or not region.is_cached(region.position, size):
            return None
        data = _read_whole(region)
        self._turn_bytes += size + CALL_BYTES
        return data

    async def _send_piece(self, region: Region, position: int, size: int) -> int:
        """Send part of a region; return how many bytes were sent, 0 at the end of the file."""
        source = region.file.fileno()
        cached = region.is_cached(position, size)
        if source < 0 or self.sendfile is None:
            read = partial(region.file.read, position, size)
            data = read() if cached else await self._in_thread(region.disk, read)
            await self._send_bytes(data)
            return len(data)
        target = self.sock.fileno()
        if cached:
            sent = self.sendfile(target, source, position, size)
        else:
            send = partial(self.sendfile, target, source, position, size)
            sent = await self._in_thread(region.disk, send)
        self._turn_bytes += sent + CALL_BYTES
        return sent

    async def _in_thread(self, disk: Disk, call: Callable[[], T]) -> T:
        result = await self.threads.run(disk, call)
        self._turn_bytes = 0
        return result

    async def _pause(self) -> None:
        """Let other tasks run if this turn is over."""
        if self._turn_bytes >= PIECE_BYTES:
            await checkpoint()
            self._turn_bytes = 0
