"""One connection, whose requests are answered one after another.

:mod:`kwire.net.turns` reads the frames. While an answer waits for followers, later requests may
already begin: see :mod:`kwire.net.waiting_answers`.

An answer may also wait without a task (:class:`kwire.waits.Parked`), as most long polls do. Then
nothing is received until the wait is over and the connection is served again; its own task takes
over if it is woken earlier, or if the answer is not ready even then.

The next frame is read once the previous answer has been handed to the kernel, so a client that
reads slowly holds one answer and nothing more. Only small answers to frames that arrived together
are sent together, at the end of the turn or as soon as the connection's task waits for anything.

The socket is plain or encrypted; this makes no difference here (:mod:`kwire.net.byte_socket`).
"""

import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import attrs
import trio

from kwire.net.byte_socket import ByteSocket
from kwire.net.framing import BufferPool, Framer
from kwire.net.listener import Answer, ConnectionRequests, Listener
from kwire.net.readiness import WatchedSocket
from kwire.net.request_memory import RequestMemory
from kwire.net.send import Part, Sender
from kwire.net.waiting_answers import WAITING_MAX, Unfinished, WaitingAnswers
from kwire.net.write_coalescer import WriteCoalescer, is_small
from kwire.types import in_address
from kwire.waits import Parked, Slow


@attrs.define(eq=False, repr=False)
class Connection:
    """One accepted socket."""

    sock: ByteSocket
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
    answers_at_once: bool = True
    """False in tests that answer every request in :meth:`_answer`, as if it had to wait."""
    readiness: WatchedSocket = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    answering: memoryview | None = None
    """The request that is being answered."""
    parked: Parked[Sequence[Part] | None] | None = None
    """The rest of a parked request, which waits without a task."""
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
        """The time when the client last sent bytes, got an answer, or received part of one."""
        return max(self.last_active, self.sender.active_at)

    def close(self, reason: str) -> None:
        """End the connection as soon as its task can be interrupted."""
        self.reason = reason
        self.scope.cancel()
        self.readiness.start_task()

    def on_hang_up(self) -> None:
        """Close the connection if the peer hung up while only a read is being answered.

        Requests that change something continue, as do reads with more bytes received after them: a
        producer with acks=0 closes its side right after sending. A connection that waits for
        request memory or for its throttle time is also closed, unless there are unread bytes.
        """
        self.hung_up = True
        request = self.answering
        if request is not None:
            is_useless = self.requests.only_reads(request) and self.nothing_unread()
        elif self.claiming:  # the rest of that frame will never arrive
            is_useless = _has_ended(self.sock)
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

    async def _wait_muted(self) -> None:
        """Stop reading for the throttle time; a client that is gone or idle is disconnected."""
        if self.sender.unsent and not self.waiting:
            await self.sender.send(())
        self.muted, self.last_active = True, self.now()
        if self.hung_up:
            self.on_hang_up()
        await trio.sleep(self.requests.muted_s)
        self.muted, self.requests.muted_s = False, 0.0

    def nothing_unread(self) -> bool:
        return not self.framer.partial and _has_ended(self.sock)

    async def claim_growth(self) -> None:
        """Claim the memory by which the incomplete frame's buffer has grown."""
        if self.framer.target() is None:
            return
        growth = self.framer.buffer_bytes - self.claimed
        if growth > 0:
            await self._claim(growth)
            self.claimed += growth

    def answer_now(
        self, frame: memoryview, parked: Parked[Sequence[Part] | None] | None = None
    ) -> Coroutine[None, None, None] | None:
        """Answer a frame without waiting; return the rest of the work if that is impossible.

        ``parked``: the rest of a request that has begun and whose wait is over. If request memory
        is short, or if earlier answers are waiting and this request may not begin early, only
        :meth:`_answer` handles it. A frame's memory is not counted if its answer is sent before
        other tasks run.
        """
        claimed, waiting = self.claimed, self.waiting
        if (
            not self.answers_at_once
            or (waiting and not (waiting.has_room and self.requests.may_begin_early(frame)))
            or not (claimed or self.memory.fits(len(frame)))
        ):
            return self._answer(frame)
        try:
            answer = self.requests.answer_now(frame) if parked is None else parked.resume()
            if isinstance(answer, Slow):
                if isinstance(answer, Unfinished):
                    return self._answer_later(frame, answer)
                if isinstance(answer, Parked) and not waiting and self._park(frame, answer):
                    return None
                return self._answer(frame, answer)
            if answer is not None:
                if waiting:
                    return self._answer_later(frame, answer)
                sender = self.sender
                if self.framer.ready and sender.draining is None and is_small(answer):
                    self.coalescer.hold(sender, answer)
                else:
                    rest = sender.send_now(answer)
                    if rest:
                        return self._send_rest(frame, rest)
        except BaseException:
            self.buffers.release(frame)
            raise
        if claimed:
            self.claimed = 0
            self.memory.free(claimed, self)
            self.buffers.release(frame)
        return self._wait_muted() if self.requests.muted_s > 0 else None

    # Parked requests, which wait without a task.

    def _park(self, frame: memoryview, parked: Parked[Sequence[Part] | None]) -> bool:
        """Have the connection served again after the wait; return False if its task has to wait."""
        readiness = self.readiness
        if not readiness.is_polled or self.hung_up or self.sender.unsent:
            return False
        resume = readiness.resume_first if parked.wait.is_first else readiness.resume
        if not parked.wait.park(resume):
            return False
        self.answering, self.parked = frame, parked
        self.claimed = self._count(frame)
        self.memory.answering += 1
        return True

    def resume(self) -> Coroutine[None, None, None] | None:
        """Answer the parked request, whose wait is over; return the rest of the work, if any."""
        frame, parked = self._unpark()
        self.last_active = self.now()
        return self.answer_now(frame, parked)

    def take_over(self) -> Coroutine[None, None, None]:
        """Return the rest of the parked request, which the connection's task continues."""
        return self._answer(*self._unpark())

    def drop_parked(self) -> None:
        """Cancel the parked request, because the connection is closed."""
        if self.parked is not None:
            frame, parked = self._unpark()
            parked.cancel()
            self.buffers.release(frame)

    def _unpark(self) -> tuple[memoryview, Parked[Sequence[Part] | None]]:
        frame, parked = self.answering, self.parked
        assert frame is not None
        assert parked is not None
        self.answering = self.parked = None
        self.memory.answering -= 1
        return frame, parked

    def _count(self, frame: memoryview) -> int:
        """Count a request as request memory, if it is not counted yet; return its size."""
        size, self.claimed = self.claimed, 0
        if not size:
            size = len(frame)
            self.memory.used += size
        return size

    async def _send_rest(self, frame: memoryview, rest: Sequence[Part]) -> None:
        """Send what the kernel did not take of an answer; its request counts until then."""
        size = self._count(frame)
        try:
            await self.sender.send(rest)
        finally:
            self.memory.free(size, self)
            self.buffers.release(frame)
        if self.requests.muted_s > 0:
            await self._wait_muted()

    async def _answer(self, frame: memoryview, begun: Answer = None) -> None:
        """Answer a frame, waiting for earlier answers, memory, the answer itself or the client.

        ``begun``: the rest of the request if it has begun.
        """
        memory, sender = self.memory, self.sender
        is_waiting, size = False, 0
        try:
            if self.waiting:
                may_begin = self.requests.may_begin_early(frame)
                await self.waiting.wait_fewer_than(WAITING_MAX if may_begin else 1)
            size, self.claimed = self.claimed, 0
            if not size:
                if memory.fits(len(frame)):
                    memory.used += len(frame)
                else:
                    self.answering = frame
                    await self._claim(len(frame))
                size = len(frame)
            memory.answering += 1
            self.answering = frame
            try:
                if self.hung_up:  # There is no need to answer a request that only reads.
                    self.on_hang_up()
                answer = self.requests.answer_now(frame) if begun is None else begun
                if isinstance(answer, Slow) and not isinstance(answer, Unfinished):
                    answer = await answer.finish()
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
                self.buffers.release(frame)
        if self.requests.muted_s > 0:
            await self._wait_muted()

    def _answer_later(
        self, frame: memoryview, answer: Unfinished[Sequence[Part]] | Sequence[Part]
    ) -> Coroutine[None, None, None] | None:
        """Send an answer after those that wait; return the rest of the work, if there is any."""
        self._send_later(answer, frame, self._count(frame))
        return self._wait_muted() if self.requests.muted_s > 0 else None

    def _send_later(
        self, answer: Unfinished[Sequence[Part]] | Sequence[Part], frame: memoryview, size: int
    ) -> None:
        """Leave the answer to the sending task, which then releases the frame."""
        if self.waiting is None:
            self.waiting = WaitingAnswers(
                self.sender, self.coalescer, self.memory, self.buffers, self._on_sent
            )
            self.start(self._send_waiting)
        holder = self if self.memory.exempts(self) else None
        self.waiting.add(answer, frame, size, holder)

    def _on_sent(self) -> None:
        self.last_active = self.now()

    async def wait_answered(self) -> None:
        """Wait until all waiting answers are sent."""
        if self.waiting:
            await self.waiting.wait_fewer_than(1)

    async def _send_waiting(self) -> None:
        assert self.waiting is not None
        try:
            await self.waiting.run()
        except Exception as error:  # noqa: BLE001  The first task that used it reports the error.
            self.failure = error
            self.close(self.reason)

    def drop_waiting(self) -> None:
        """Drop the waiting answers, because the connection is closed."""
        if self.waiting is not None:
            self.waiting.drop_all()


def _has_ended(sock: ByteSocket) -> bool:
    """Return whether no bytes are left to receive from a peer that has hung up."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
