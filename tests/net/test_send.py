"""Sends: small parts joined, regions by sendfile, never fewer bytes than promised."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import attrs
import pytest
import trio

from kwire.net.connection import Disconnect
from kwire.net.send import JOINED_BYTES, Part, send_parts


@attrs.define(eq=False)
class Region:
    """A stand-in for kwire.log's regions over a plain file."""

    file: BinaryIO
    position: int
    size: int
    warm: bool
    closed: bool = False

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        self.file.seek(self.position)
        return self.file.read(self.size)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def content() -> bytes:
    return bytes(range(256)) * 8192


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Iterator[BinaryIO]:
    (tmp_path / "segment").write_bytes(content)
    with (tmp_path / "segment").open("rb") as opened:
        yield opened


async def sent(parts: list[Part], room: int = 4096) -> bytes:
    """What arrives at the other end of a small pipe."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    ours.setblocking(False)
    got = bytearray()
    theirs.setblocking(False)

    async def read() -> None:
        while True:
            await trio.lowlevel.wait_readable(theirs)
            if not (data := theirs.recv(65536)):
                return
            got.extend(data)

    with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            with ours:
                await send_parts(ours, parts, trio.CapacityLimiter(1))
    return bytes(got)


async def test_bytes_of_every_size_in_order() -> None:
    sizes = [0, 1, 100, JOINED_BYTES, JOINED_BYTES - 1, 3 * JOINED_BYTES, 7, 2 * JOINED_BYTES]
    parts: list[Part] = [bytes([number]) * size for number, size in enumerate(sizes)]
    parts[2] = memoryview(bytes(parts[2]))  # type: ignore[arg-type]
    assert await sent(parts) == b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("warm", [True, False])
async def test_regions_between_bytes(file: BinaryIO, content: bytes, warm: bool) -> None:
    first = Region(file, 10, 1_500_000, warm)
    second = Region(file, 0, 5, warm)
    empty = Region(file, 0, 0, warm)
    data = await sent([b"head", first, b"middle", empty, second])
    assert data == b"head" + content[10:1_500_010] + b"middle" + content[:5]
    assert first.closed
    assert second.closed
    assert empty.closed


@pytest.mark.parametrize("warm", [True, False])
async def test_fewer_bytes_than_promised(file: BinaryIO, content: bytes, warm: bool) -> None:
    region = Region(file, len(content) - 10, 11, warm)
    after = Region(file, 0, 5, warm)
    with pytest.raises(ExceptionGroup) as caught:
        await sent([b"head", region, after])
    assert caught.group_contains(Disconnect, match="has only")
    assert region.closed
    assert after.closed, "all are closed, sent or not"


async def test_regions_without_a_descriptor() -> None:
    class Memory:
        def fileno(self) -> int:
            return -1

    class InMemory(Region):
        def read(self) -> bytes:
            return b"x" * self.size

    region = InMemory(Memory(), 0, 100, True)  # type: ignore[arg-type]
    assert await sent([b"head", region]) == b"head" + b"x" * 100
