"""A running service for tests, over real loopback sockets, and the sessions that answer on it."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from struct import pack
from typing import Any

import attrs
import trio
import trio.testing

from kwire.net.framing import Disconnect
from kwire.net.limits import Limits
from kwire.net.listener import Answer
from kwire.net.send import Part
from kwire.net.server import NetServer
from kwire.net.waiting_answers import Unfinished
from kwire.testing.wire import TrioWireClient
from kwire.waits import Deadlines, Parked, Slow, TimedWait

BULK_BYTES = 4000
"""Nearly the largest size of an answer that is held back and sent with the next one."""


@attrs.define
class Lane:
    """The way in which the nodes of a test answer."""

    is_open: bool = True
    """False if each request is answered as if it had to wait."""


LANE = Lane()


@attrs.define
class Echo:
    """Answers a frame with itself; a frame that begins with one of some words does more."""

    waiting: trio.Event = attrs.field(factory=trio.Event)
    go: trio.Event = attrs.field(factory=trio.Event)
    cancelled: bool = False
    answered: int = 0
    muted_s: float = 0.0
    user: str = ""
    """The user name in the client's certificate."""
    deadlines: Deadlines | None = None
    """Set by a test whose requests wait without a task."""
    parked: list[TimedWait] = attrs.field(factory=list)
    dropped: int = 0
    """The parked requests that were cancelled."""
    is_closed: bool = False

    def identify(self, user: str) -> None:
        self.user = user

    def answer_now(self, frame: memoryview) -> Answer:
        word = bytes(frame[:5])
        if word == b"park.":
            return self._park(bytes(frame))
        if word in (b"wait.", b"write"):
            return Slow(partial(self._wait, word, bytes(frame)))
        if word == b"none.":
            return None
        elif word == b"stop.":
            raise Disconnect("asked to stop")
        elif word == b"crash":
            raise ZeroDivisionError("a bug")
        elif word == b"mute.":
            self.muted_s = 5.0
        elif word == b"bulk.":
            self.answered += 1
            return [pack(">i", BULK_BYTES), bytes(BULK_BYTES)]
        elif word == b"large":
            return [pack(">i", 50 << 20), bytes(50 << 20)]
        return self.echo(bytes(frame))

    def _park(self, body: bytes) -> Answer:
        """Wait without a task for at most a minute; the rest of the frame says what follows."""
        assert self.deadlines is not None
        wait = TimedWait(self.deadlines, is_first=body[5:] == b"first")
        wait.begin(trio.current_time() + 60)
        self.parked.append(wait)
        return ParkedEcho(wait, self, body)

    async def _wait(self, word: bytes, body: bytes) -> list[bytes]:
        self.waiting.set()
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled = word == b"wait."
            raise
        return self.echo(body)

    def echo(self, body: bytes) -> list[bytes]:
        self.answered += 1
        return [pack(">i", len(body)), body]

    def only_reads(self, frame: memoryview) -> bool:
        return bytes(frame[:5]) != b"write"

    def may_begin_early(self, frame: memoryview) -> bool:
        return False

    def on_closed(self) -> None:
        self.is_closed = True


class ParkedEcho(Parked[Unfinished[Sequence[Part]] | Sequence[Part] | None]):
    """A frame that waits without a task; the bytes after its first word are answered next."""

    def __init__(self, wait: TimedWait, echo: Echo, body: bytes) -> None:
        super().__init__(wait)
        self.echo = echo
        self.body = body

    def resume(self) -> Answer:
        self.wait.end()
        rest = self.body[5:]
        return self.echo.answer_now(memoryview(rest)) if rest else self.echo.echo(self.body)

    def cancel(self) -> None:
        self.wait.end()
        self.echo.dropped += 1


@attrs.define
class Node:
    """A running service and the sessions it made."""

    service: NetServer
    sessions: list[Echo]
    nursery: trio.Nursery
    started: float = attrs.field(factory=trio.current_time)
    port: int = 0
    deadlines: Deadlines | None = None

    async def keep_deadlines(self) -> None:
        """Let the requests of later sessions wait without a task."""
        self.deadlines = Deadlines(trio.current_time)
        await self.nursery.start(self.deadlines.run)

    def session(self, listener: str, host: str, port: int) -> Echo:
        self.sessions.append(Echo(deadlines=self.deadlines))
        return self.sessions[-1]

    def listen(self, name: str = "A", **more: Any) -> int:
        self.port = self.service.bind(name, "127.0.0.1", 0, **more).port
        self.service.accept(name, self.session)
        return self.port

    async def connect(self, port: int = 0) -> TrioWireClient:
        client = await TrioWireClient.connect("127.0.0.1", port or self.port)
        await settle()
        return client

    async def connect_narrow(self) -> TrioWireClient:
        """Connect a client whose socket has a small receive buffer."""
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        await sock.connect(("127.0.0.1", self.port))
        await settle()
        return TrioWireClient(trio.SocketStream(sock))

    async def wait_connection_count(self, count: int) -> None:
        """Wait until this number of connections is open."""
        while len(self.service.connections) != count:
            await trio.testing.wait_all_tasks_blocked()


async def settle() -> None:
    """Give the other tasks, and the loopback device, their turns."""
    for _ in range(3):
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def running(limits: Limits | None = None) -> AsyncIterator[Node]:
    """Run a node's service without listeners; stop it at the end."""
    async with trio.open_nursery() as nursery:
        service = NetServer(limits or Limits(), answers_at_once=LANE.is_open)
        node = Node(service, [], nursery)
        await nursery.start(node.service.run)
        yield node
        nursery.cancel_scope.cancel()


async def echo(client: TrioWireClient, body: bytes) -> bytes:
    await client.send_bytes(pack(">i", len(body)) + body)
    return await client.read_frame()


def frames_of(*bodies: bytes) -> bytes:
    """Return the bytes of frames with these bodies, one after the other."""
    return b"".join(pack(">i", len(body)) + body for body in bodies)
