"""A log directory that hangs, while clients fetch from it and from others."""

import threading
from collections.abc import Sequence
from struct import pack
from typing import Any

import attrs
import trio

from kwire.log.disk import Disk
from simulation.disk import SimDisk
from tests.support.net.node import frames_of, running

CONTENT = b"records of an old segment"
CLIENTS = 12
"""More than the threads of a directory, and than all directories once had together."""


@attrs.define(eq=False)
class OldSegment:
    """A file that is not in the page cache; its directory may hang."""

    answers: threading.Event
    reads: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))

    def fileno(self) -> int:
        return -1

    def read(self, position: int, size: int) -> bytes:
        self.reads.release()
        self.answers.wait()
        return CONTENT[position : position + size]


@attrs.define(eq=False)
class ColdRegion:
    """All of an old segment."""

    file: OldSegment
    disk: Disk
    position: int = 0

    def __len__(self) -> int:
        return len(CONTENT)

    def is_cached(self, position: int, size: int) -> bool:
        return False

    def close(self) -> None:
        pass


@attrs.define
class Fetches:
    """Answers each frame with the old segment of the directory that it names."""

    directories: dict[bytes, tuple[OldSegment, Disk]]
    muted_s: float = 0.0

    def answer_now(self, frame: memoryview) -> Sequence[Any]:
        return [pack(">i", len(CONTENT)), ColdRegion(*self.directories[bytes(frame)])]

    def identify(self, user: str) -> None:
        """Do nothing, because no client shows a certificate."""

    def only_reads(self, frame: memoryview) -> bool:
        return True

    def may_begin_early(self, frame: memoryview) -> bool:
        return False

    def on_closed(self) -> None: ...


async def test_hung_directory_delays_no_answer_from_another() -> None:
    """Invariant 91: clients that read from a hung disk take no thread of another directory."""
    answers, at_once = threading.Event(), threading.Event()
    at_once.set()
    hung = OldSegment(answers)
    session = Fetches({b"hung": (hung, SimDisk()), b"good": (OldSegment(at_once), SimDisk())})
    async with running() as node:
        node.port = node.service.bind("A", "127.0.0.1", 0).port
        node.service.accept("A", lambda *_: session)
        clients = [await node.connect() for _ in range(CLIENTS)]
        other = await node.connect()
        try:
            for client in clients:
                await client.send_bytes(frames_of(b"hung"))
            await trio.to_thread.run_sync(hung.reads.acquire)
            await trio.sleep(0.1)
            with trio.fail_after(5):
                await other.send_bytes(frames_of(b"good"))
                assert await other.read_frame() == CONTENT
        finally:
            answers.set()
        for client in clients:
            assert await client.read_frame() == CONTENT
        for client in (*clients, other):
            await client.stream.aclose()
