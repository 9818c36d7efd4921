"""Sends: small parts joined, regions by sendfile, never fewer bytes than promised."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio

from kwire.net.framing import Disconnect
from kwire.net.send import JOINED_BYTES, PIECE_BYTES, Part, Sender
from tests.support.net.region import File, Region


def warm(position: int, size: int) -> bool:
    return True


def cold(position: int, size: int) -> bool:
    return False


@pytest.fixture
def content() -> bytes:
    return bytes(range(256)) * 8192


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Iterator[File]:
    (tmp_path / "segment").write_bytes(content)
    with (tmp_path / "segment").open("rb") as opened:
        yield File(opened)


async def send(parts: list[Part], room: int = 4096) -> bytes:
    """Return the bytes that arrive at the other end of a small pipe."""
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
                await Sender(ours).send(parts)
    return bytes(got)


async def test_parts_of_every_size_are_sent_in_order() -> None:
    sizes = [0, 1, 100, JOINED_BYTES, JOINED_BYTES - 1, 3 * JOINED_BYTES, 7, 2 * JOINED_BYTES]
    parts: list[Part] = [bytes([number]) * size for number, size in enumerate(sizes)]
    parts[2] = memoryview(bytes(parts[2]))  # type: ignore[arg-type]
    assert await send(parts) == b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_cached", [warm, cold])
async def test_regions_are_sent_between_bytes_and_closed(
    file: File, content: bytes, is_cached: Callable[[int, int], bool]
) -> None:
    first = Region(file, 10, 1_500_000, is_cached)
    second = Region(file, 0, 5, is_cached)
    empty = Region(file, 0, 0, is_cached)
    data = await send([b"head", first, b"middle", empty, second])
    assert data == b"head" + content[10:1_500_010] + b"middle" + content[:5]
    assert first.closed
    assert second.closed
    assert empty.closed


@pytest.mark.parametrize("is_cached", [warm, cold])
async def test_region_with_too_few_bytes_ends_the_connection(
    file: File, content: bytes, is_cached: Callable[[int, int], bool]
) -> None:
    region = Region(file, len(content) - 10, 11, is_cached)
    after = Region(file, 0, 5, is_cached)
    with pytest.raises(ExceptionGroup) as caught:
        await send([b"head", region, after])
    assert caught.group_contains(Disconnect, match="has only")
    assert region.closed
    assert after.closed, "all are closed, sent or not"


async def test_region_without_a_descriptor_is_read_and_sent(file: File, content: bytes) -> None:
    class Memory(File):
        def fileno(self) -> int:
            return -1

    region = Region(Memory(file.opened), 0, len(content), warm)
    assert await send([b"head", region]) == b"head" + content


@attrs.define(eq=False)
class Kernel:
    """A stand-in for ``os.sendfile`` and the page cache: takes everything, notes each call."""

    cached: set[int] = attrs.field(factory=set)
    """Pieces of the file that are in the page cache, by number."""
    probed: list[tuple[int, int]] = attrs.field(factory=list)
    log: list[str] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)
    in_threads: list[int] = attrs.field(factory=list)
    full_at: int | None = None
    """The piece at which the socket is full once, and the page cache loses everything."""

    def is_cached(self, position: int, size: int) -> bool:
        self.probed.append((position, size))
        return position // PIECE_BYTES in self.cached

    def sendfile(self, target: int, source: int, position: int, count: int) -> int:
        if position // PIECE_BYTES == self.full_at:
            self.full_at = None
            self.cached.clear()
            raise BlockingIOError
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            self.in_threads.append(position // PIECE_BYTES)
        self.sizes.append(count)
        self.log.append("piece")
        return count

    async def serve_others(self) -> None:
        """Another connection that always has something to do."""
        while True:
            self.log.append("other")
            await trio.lowlevel.checkpoint()

    async def send(self, regions: list[Part]) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.serve_others)
                sender = Sender(ours, sendfile=self.sendfile)
                await sender.send(regions)
                nursery.cancel_scope.cancel()

    def longest_stretch(self) -> int:
        """The most calls in a row during which no other connection was served."""
        return max(map(len, "".join(word[0] for word in self.log).split("o")))


async def test_other_connections_are_served_between_pieces_of_a_large_answer(file: File) -> None:
    """invariant 101: an answer of any size keeps the loop for one piece at a time."""
    kernel = Kernel(cached=set(range(100)))
    await kernel.send([Region(file, 0, 100 * PIECE_BYTES - 7, kernel.is_cached)])
    assert len(kernel.sizes) == 100
    assert max(kernel.sizes) <= PIECE_BYTES
    assert kernel.longest_stretch() <= 2, "tasks of one tick run in any order"


async def test_other_connections_are_served_between_many_small_regions(file: File) -> None:
    kernel = Kernel(cached={0})

    class CountedFile(File):
        def read(self, position: int, size: int) -> bytes:
            kernel.log.append("piece")
            return bytes(size)

    counted_file = CountedFile(file.opened)
    await kernel.send([Region(counted_file, 0, 50, kernel.is_cached) for _ in range(1000)])
    assert kernel.log.count("piece") == 1000
    assert kernel.longest_stretch() <= 2 * 32


async def test_small_answer_is_sent_in_one_call(file: File, content: bytes) -> None:
    """Its last bytes in a packet of their own would wake the client once more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        region = Region(file, 10, 16_000, warm)
        await Sender(ours).send([b"head", region, b"tags"])
        assert theirs.recv(1 << 20) == b"head" + content[10:16_010] + b"tags"
        assert region.closed


async def test_small_region_that_is_not_cached_is_read_in_a_thread(file: File) -> None:
    kernel = Kernel()
    await kernel.send([Region(file, 0, 100, kernel.is_cached)])
    assert kernel.in_threads == [0]


async def test_pieces_that_are_not_cached_are_sent_by_a_thread(file: File) -> None:
    """invariant 101: pieces that would wait for the disk, and they alone, leave by a thread."""
    kernel = Kernel(cached={0, 1, 4})
    await kernel.send([Region(file, 0, 5 * PIECE_BYTES, kernel.is_cached)])
    assert kernel.probed == [(number * PIECE_BYTES, PIECE_BYTES) for number in range(5)]
    assert kernel.in_threads == [2, 3]


async def test_cache_is_checked_again_after_waiting_for_the_reader(file: File) -> None:
    """The page cache may lose it while the socket is full."""
    kernel = Kernel(cached={0, 1}, full_at=1)
    await kernel.send([Region(file, 0, 2 * PIECE_BYTES, kernel.is_cached)])
    assert kernel.in_threads == [1]
