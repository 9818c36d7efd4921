"""One connection, whose frames are answered one after another.

While an answer waits for followers, the requests behind it may already begin: see
:mod:`kwire.net.waiting_answers`.

A connection's turn lasts at most 16 frames or a millisecond, then other connections get theirs. The
next frame is read once the previous answer has been handed to the kernel, so a slow reader holds
one answer and nothing more. Only small answers to frames that arrived together are sent together,
at the end of the turn or as soon as the connection's task waits for anything.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import attrs
import trio
from trio.lowlevel import checkpoint

from kwire.net.framing import BufferPool, Disconnect, Framer
from kwire.net.listener import ConnectionRequests, Listener
from kwire.net.readiness import WatchedSocket
from kwire.net.request_memory import RequestMemory
from kwire.net.send import Part, Sender
from kwire.net.waiting_answers import WAITING_MAX, Unfinished, WaitingAnswers
from kwire.net.write_coalescer import WriteCoalescer, is_small
from kwire.types import in_address

TURN_FRAMES: Final = 16
TURN_S: Final = 0.001
RECEIVED_BYTES: Final = 64 << 10
"""The most bytes that one call receives, except for a large frame."""


@attrs.define(eq=False, repr=False)
class Connection:
    """One accepted socket."""

    sock: socket.socket
    listener: Listener
    host: str
    port: int
    """The client's port."""
    requests: ConnectionRequests
    framer: Framer
    sender: Sender
    memory: RequestMemory
    buffers: BufferPool
    coalescer: WriteCoalescer
    now: Callable[[], float]
    last_active: float
    start: Callable[[Callable[[], Awaitable[None]]], None]
    """Starts another task of the connection, which ends when the connection ends."""
    readiness: WatchedSocket = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    answering: memoryview | None = None
    """The request that is being answered."""
    claiming: bool = False
    """True while the connection waits for request memory."""
    muted: bool = False
    """True while nothing is read because of the client's throttle time (KIP-219)."""
    hung_up: bool = False
    claimed: int = 0
    """The bytes of request memory counted for an incomplete frame."""
    reason: str = ""
    failure: Exception | None = None
    """The error that ended the task that sends waiting answers."""
    waiting: WaitingAnswers | None = None
    """The waiting answers; None before the first."""

    @property
    def peer(self) -> str:
        """The client's address and port, for logs."""
        return f"{in_address(self.host)}:{self.port}"

    @property
    def is_busy(self) -> bool:
        """True while the client waits for the broker, so the connection is not idle."""
        return (
            self.answering is not None
            or self.claiming
            or (self.waiting is not None and self.waiting.is_unfinished)
        )

    @property
    def used_at(self) -> float:
        """The time when the client last sent bytes, was answered, or received part of an answer."""
        return max(self.last_active, self.sender.active_at)

    def close(self, reason: str) -> None:
        """End the connection as soon as its task can be interrupted."""
        self.reason = reason
        self.scope.cancel()

    def on_hang_up(self) -> None:
        """Close the connection if the peer hung up while only a read is being answered.

        Requests that change something continue, as do reads with more bytes received after them: a
        producer with acks=0 closes its side right after sending. A connection that waits for
        request memory or for its throttle time is also closed, unless received bytes are still
        unread.
        """
        self.hung_up = True
        request = self.answering
        if request is not None:
            is_useless = self.requests.only_reads(request) and self.nothing_unread()
        elif self.claiming:  # the rest of that frame will not come
            is_useless = self.nothing_to_receive()
        else:
            is_useless = self.muted and self.nothing_unread()
        if is_useless:
            self.close("")

    async def _claim(self, count: int) -> None:
        """Count a frame's bytes as request memory, once there is room for them."""
        self.claiming = True
        if self.hung_up:
            self.on_hang_up()
        await self.memory.claim(count, self)
        self.claiming = False

    async def _wait_muted(self, now: float) -> None:
        """Read nothing for the throttle time; a client that is gone or idle is disconnected."""
        self.muted, self.last_active = True, now
        if self.hung_up:
            self.on_hang_up()
        await trio.sleep(self.requests.muted_s)
        self.muted, self.requests.muted_s = False, 0.0

    def nothing_unread(self) -> bool:
        return not self.framer.partial and self.nothing_to_receive()

    def nothing_to_receive(self) -> bool:
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def converse(self) -> None:
        """Read and answer until the peer hangs up, then send the answers that still wait."""
        try:
            await self._converse()
        except Disconnect as end:
            await self._wait_answered()
            if end.answer:
                await self.sender.send(end.answer)
            raise
        await self._wait_answered()

    async def _converse(self) -> None:
        sock, framer = self.sock, self.framer
        while True:
            await self.readiness.wait_data()
            more = True
            while more:
                if framer.target() is not None and framer.buffer_bytes > self.claimed:
                    await self._claim_growth()
                try:
                    count, more = _receive(sock, framer)
                except BlockingIOError:
                    break
                if not count:
                    return
                self.last_active = self.now()
                await self._turns()
                if more:
                    await checkpoint()

    async def _claim_growth(self) -> None:
        """Claim the memory by which the incomplete frame's buffer has grown."""
        growth = self.framer.buffer_bytes - self.claimed
        if growth > 0:
            await self._claim(growth)
            self.claimed += growth

    async def _turns(self) -> None:
        """Answer every whole frame that has arrived, in turns."""
        framer, started, count = self.framer, self.last_active, 0
        answered = False
        while (frame := framer.take()) is not None:
            if self.waiting:
                may_begin = self.requests.may_begin_early(frame)
                await self.waiting.wait_fewer_than(WAITING_MAX if may_begin else 1)
            await self._answer(frame)
            answered = True
            count += 1
            if framer.ready and (count >= TURN_FRAMES or self.now() - started > TURN_S):
                await checkpoint()
                started, count = self.now(), 0
        if self.sender.unsent and not self.waiting:
            await self.sender.send(())
        if answered:
            self.last_active = self.now()

    async def _answer(self, frame: memoryview) -> None:
        memory, sender = self.memory, self.sender
        size = self.claimed or len(frame)
        if self.claimed:
            self.claimed = 0
        elif memory.fits(size):
            memory.used += size
        else:
            self.answering = frame
            await self._claim(size)
        is_waiting = False
        try:
            memory.answering += 1
            self.answering = frame
            try:
                if self.hung_up:  # A request that only reads is not answered.
                    self.on_hang_up()
                answer = await self.requests.begin(frame)
            finally:
                self.answering = None
                memory.answering -= 1
            if isinstance(answer, Unfinished) or (self.waiting and answer is not None):
                is_waiting = True
                self._send_later(answer, frame, size)
            elif answer is not None:
                if self.framer.ready and is_small(answer) and sender.draining is None:
                    self.coalescer.hold(sender, answer)
                else:
                    await sender.send(answer)
        finally:
            if not is_waiting:
                memory.free(size, self)
                self._release(frame)
        if self.requests.muted_s > 0:
            if sender.unsent and not self.waiting:
                await sender.send(())
            await self._wait_muted(self.now())

    def _release(self, frame: memoryview) -> None:
        """Return the frame's buffer to the pool once its response is sent."""
        buffer = frame.obj
        if isinstance(buffer, bytearray):
            frame.release()
            self.buffers.give(buffer)

    # Answers that wait.

    def _send_later(
        self, answer: Unfinished[Sequence[Part]] | Sequence[Part], frame: memoryview, size: int
    ) -> None:
        """Leave the answer to the sending task, which then releases the frame."""
        if self.waiting is None:
            self.waiting = WaitingAnswers(self.sender, self.coalescer)
            self.start(self._send_waiting)
        self.memory.answering += 1
        holder = self if self.memory.exempts(self) else None
        self.waiting.add(answer, partial(self._on_sent, frame, size, holder))

    def _on_sent(self, frame: memoryview, size: int, holder: "Connection | None") -> None:
        self.memory.answering -= 1
        self.memory.free(size, holder)
        self._release(frame)
        self.last_active = self.now()

    async def _wait_answered(self) -> None:
        """Wait until all waiting answers are sent."""
        if self.waiting:
            await self.waiting.wait_fewer_than(1)

    async def _send_waiting(self) -> None:
        assert self.waiting is not None
        try:
            await self.waiting.run()
        except Exception as error:  # noqa: BLE001  Its first task reports it.
            self.failure = error
            self.scope.cancel()

    def drop_waiting(self) -> None:
        """Drop the waiting answers, because the connection is closed."""
        if self.waiting is not None:
            self.waiting.drop_all()


def _receive(sock: socket.socket, framer: Framer) -> tuple[int, bool]:
    """Receive once; return how many bytes came, and whether more may have arrived.

    The caller keeps no reference to the bytes or the buffer, because a connection can wait for
    long.
    """
    target = framer.target()
    if target is None:
        data = sock.recv(RECEIVED_BYTES)
        framer.feed(data)
        return len(data), len(data) == RECEIVED_BYTES
    count = sock.recv_into(target)
    framer.advance(count)
    return count, count == len(target)
