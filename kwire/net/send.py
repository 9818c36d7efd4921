"""Sends an answer: small pieces joined, file regions by sendfile.

A region whose bytes may not be in the page cache leaves through a thread, so that a slow disk
holds up its own connection only.  Regions are closed here, whatever happens.  When a file has
fewer bytes than its region promised, the frame cannot be completed: Disconnect.
"""

import os
import socket
import sys
from collections.abc import Sequence
from typing import Final, Protocol

import trio
from trio.lowlevel import wait_writable

from kwire.net.connection import Disconnect

Bytes = bytes | bytearray | memoryview

JOINED_BYTES: Final = 64 << 10
COLD_BYTES: Final = 1 << 20
"""How much one call in a thread sends at most: a thread is not kept by one connection."""
_MORE: Final = getattr(socket, "MSG_MORE", 0)
_SENDFILE: Final = sys.platform == "linux"


class Descriptor(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Its descriptor, or -1 where there is none."""


class Region(Protocol):
    """Bytes of a file that stay readable until closed (``kwire.log`` makes them)."""

    @property
    def file(self) -> Descriptor: ...
    @property
    def position(self) -> int: ...
    @property
    def warm(self) -> bool:
        """Whether the bytes are believed to be in the page cache."""

    def __len__(self) -> int: ...
    def read(self) -> bytes: ...
    def close(self) -> None: ...


Part = Bytes | Region


async def send_parts(
    sock: socket.socket, parts: Sequence[Part], threads: trio.CapacityLimiter
) -> None:
    """Send all of ``parts`` in order."""
    last = len(parts) - 1
    joined: list[Bytes] = []
    size = 0
    try:
        for index, part in enumerate(parts):
            if isinstance(part, Bytes) and size + len(part) <= JOINED_BYTES:
                joined.append(part)
                size += len(part)
                continue
            await send_bytes(sock, b"".join(joined), _MORE)
            joined, size = [], 0
            if isinstance(part, Bytes):
                await send_bytes(sock, part, _MORE if index < last else 0)
            else:
                await send_region(sock, part, threads)
        await send_bytes(sock, b"".join(joined))
    finally:
        for part in parts:
            if not isinstance(part, Bytes):
                part.close()


async def send_bytes(sock: socket.socket, data: Bytes, flags: int = 0) -> None:
    """Send all of ``data``; ``MSG_MORE`` among the flags says that more follows at once."""
    if not data:
        return
    try:
        sent = sock.send(data, flags)
    except BlockingIOError:
        sent = 0
    if sent == len(data):
        return
    view = memoryview(data)[sent:]
    while view:
        await wait_writable(sock)
        try:
            view = view[sock.send(view, flags) :]
        except BlockingIOError:
            continue


async def send_region(sock: socket.socket, region: Region, threads: trio.CapacityLimiter) -> None:
    """Send a file's bytes without reading them into this process, where that is possible."""
    source = region.file.fileno()
    if source < 0 or not _SENDFILE:
        read = region.read if region.warm else None
        data = read() if read else await trio.to_thread.run_sync(region.read, limiter=threads)
        if len(data) < len(region):
            raise Disconnect(f"a region of {len(region)} bytes has only {len(data)}")
        return await send_bytes(sock, data)
    target, position, left = sock.fileno(), region.position, len(region)
    while left:
        try:
            if region.warm:
                sent = os.sendfile(target, source, position, left)
            else:
                sent = await trio.to_thread.run_sync(
                    os.sendfile, target, source, position, min(left, COLD_BYTES), limiter=threads
                )
        except BlockingIOError:
            await wait_writable(sock)
            continue
        if not sent:
            raise Disconnect(f"a region of {len(region)} bytes has only {len(region) - left}")
        position += sent
        left -= sent
