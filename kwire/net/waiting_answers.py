"""Answers that wait for followers or a disk while the connection's next requests are served.

A Produce with acks=all has done its own work once its records are appended. The connection then
begins later Produce requests, so that a follower copies the batches of several requests at once;
any other request waits until these answers are sent. Rules:

* Answers are sent in the order of their requests, by one task, which is started for the first
  waiting answer.
* At most :data:`WAITING_MAX` answers of a connection wait.
* The memory of a frame counts until its answer is sent: queued writes refer to it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import attrs
import trio
from trio.lowlevel import ParkingLot

from kwire.net.framing import BufferPool
from kwire.net.request_memory import Holder, RequestMemory
from kwire.net.send import Part, Sender
from kwire.net.write_coalescer import WriteCoalescer, is_small
from kwire.waits import Slow

WAITING_MAX: Final = 16
"""More requests than clients send without waiting for a response: idempotent clients send five by
default.
"""
T_co = TypeVar("T_co", covariant=True)


class Unfinished(Slow[T_co]):
    """The result of a request that has done its own work but cannot be answered yet.

    The next request may begin before this one is finished.
    """


@attrs.define(eq=False, repr=False)
class _Waiting:
    """One answer of the queue."""

    answer: Unfinished[Sequence[Part]] | Sequence[Part] | None
    frame: memoryview
    """The request."""
    size: int
    """The request memory of the frame in bytes."""
    holder: Holder | None
    """The connection that holds memory beyond the limit; None if it does not."""


@attrs.define(eq=False, repr=False)
class WaitingAnswers:
    """The waiting answers of one connection, in the order of their requests."""

    sender: Sender
    coalescer: WriteCoalescer
    memory: RequestMemory
    buffers: BufferPool
    on_sent: Callable[[], None]
    """Called after each answer."""
    is_unfinished: bool = False
    """True while the client waits for the broker to answer, rather than the reverse."""
    _queue: deque[_Waiting] = attrs.field(factory=deque)
    _added: ParkingLot = attrs.field(factory=ParkingLot)
    _sent: ParkingLot = attrs.field(factory=ParkingLot)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        return len(self._queue) < WAITING_MAX

    def add(
        self,
        answer: Unfinished[Sequence[Part]] | Sequence[Part],
        frame: memoryview,
        size: int,
        holder: Holder | None,
    ) -> None:
        """Send an answer after all answers added before it, then release its request's memory."""
        self.memory.answering += 1
        self._queue.append(_Waiting(answer, frame, size, holder))
        self._added.unpark()

    async def wait_fewer_than(self, count: int) -> None:
        """Wait until fewer than ``count`` answers wait."""
        while len(self._queue) >= count:
            await self._sent.park()

    async def run(self) -> None:
        """Send the answers until :meth:`drop_all`; an exception ends the connection."""
        with self._scope:
            while True:
                while not self._queue:
                    await self._added.park()
                await self._send(self._queue[0])
                self._release(self._queue.popleft())
                self.on_sent()
                self._sent.unpark_all()

    async def _send(self, waiting: _Waiting) -> None:
        """Send one answer once it is finished, without holding on to the request's frame."""
        answer, waiting.answer = waiting.answer, None
        assert answer is not None, "each answer is sent once"
        parts: Sequence[Part]
        if isinstance(answer, Unfinished):
            self.is_unfinished = True
            try:
                parts = await answer.finish()
            finally:
                self.is_unfinished = False
        else:
            parts = answer
        if len(self._queue) > 1 and self.sender.draining is None and is_small(parts):
            self.coalescer.hold(self.sender, parts)
        else:
            await self.sender.send(parts)

    def drop_all(self) -> None:
        """Drop all answers and release their frames, because the connection is closed."""
        self._scope.cancel()
        while self._queue:
            self._release(self._queue.popleft())

    def _release(self, waiting: _Waiting) -> None:
        self.memory.answering -= 1
        self.memory.free(waiting.size, waiting.holder)
        self.buffers.release(waiting.frame)
