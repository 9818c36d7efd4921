"""Reads the frames of one connection in turns, and has them answered.

A connection's turn consists of one receive and at most 16 frames or a millisecond; then it is the
turn of other connections. :meth:`Turns.serve` is called when bytes have arrived, and does
everything that does not have to wait. The connection's own task runs :meth:`Turns.run` and
continues a turn only if something has to wait: an answer, the client, request memory, or an error
that ends the connection. While a request waits without a task (:class:`kwire.waits.Parked`),
nothing is received; the turn continues when the wait is over.
"""

from collections.abc import Coroutine
from typing import Final, TypeAlias

import attrs
from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from kwire.net.byte_socket import ByteSocket
from kwire.net.connection import Connection
from kwire.net.framing import Disconnect, Framer

TURN_FRAMES: Final = 16
TURN_S: Final = 0.001
RECEIVED_BYTES: Final = 64 << 10
"""The most bytes that one call receives, except for a large frame."""
Begun: TypeAlias = tuple[bool, Coroutine[None, None, None] | None]
"""The result of one receive: whether more bytes may have arrived, and the rest of the work."""
_FINISHED: Final[Begun] = (False, None)
_MORE: Final[Begun] = (True, None)


class _HungUp(Exception):
    """The client has closed its side."""


@attrs.define(eq=False, repr=False)
class Turns:
    """The turns of one connection."""

    connection: Connection
    _begun: Begun | None = None
    """The turn that :meth:`serve` has begun and :meth:`run` must continue."""
    _has_arrived: bool = False
    """True if bytes may have arrived that must wait until the parked request is answered."""

    async def run(self) -> None:
        """Read and answer until the peer hangs up, then send the answers that are still waiting."""
        connection = self.connection
        try:
            await self._run()
        except Disconnect as end:
            await connection.wait_answered()
            if end.answer:
                await connection.sender.send(end.answer)
            raise
        except _HungUp:
            await connection.wait_answered()

    async def _run(self) -> None:
        connection = self.connection
        if self._begun is None:  # A connection that is closed first begins nothing.
            await checkpoint_if_cancelled()
        while True:  # First receive: TLS may hold bytes that arrived together with its handshake.
            begun, self._begun = self._begun, None
            if begun is None:
                if connection.parked is not None:  # woken before the wait was over
                    begun = True, self._finish(connection.take_over(), 1, connection.now())
                else:
                    if connection.framer.partial:
                        await connection.claim_growth()
                    begun = self._begin()
            more, rest = begun
            if rest is not None:
                await rest
            if connection.parked is not None:
                self._has_arrived |= more
            elif more:
                await checkpoint()
                continue
            await connection.readiness.wait_data(self.serve)

    def serve(self, *, has_arrived: bool = True) -> bool:
        """Answer the requests that have arrived; return False if the task has to continue.

        If nothing ``has_arrived``, the wait of the parked request is over.
        """
        connection = self.connection
        try:
            if connection.parked is not None:
                if has_arrived or not connection.parked.wait.is_over:
                    self._has_arrived |= has_arrived
                    return True
                begun = self._resume()
            elif not has_arrived:  # The connection's task has already answered the request.
                return True
            elif connection.framer.partial:  # The frame may need more request memory.
                return False
            else:
                begun = self._begin()
        except BaseException as error:  # noqa: BLE001  The task of the connection raises it.
            begun = False, _fail(error)
        if begun is _FINISHED:
            return True
        self._begun = begun
        return False

    def _resume(self) -> Begun:
        """Answer the parked request and, unless that has to wait, the bytes after it."""
        connection = self.connection
        rest = connection.resume()
        if connection.parked is not None:
            return _FINISHED
        has_arrived, self._has_arrived = self._has_arrived, False
        if rest is not None or connection.framer.partial:
            return has_arrived, self._finish(rest, 1, connection.now())
        return self._begin() if has_arrived else _FINISHED

    def _begin(self) -> Begun:
        """Receive once and answer the requests that need not wait.

        Raises _HungUp if the client has closed its side.
        """
        connection = self.connection
        framer = connection.framer
        try:
            more, frame = _receive(connection.sock, framer)
        except BlockingIOError:
            return _FINISHED
        connection.last_active = started = connection.now()
        count = 0
        while frame is not None:
            rest = connection.answer_now(frame)
            count += 1
            if rest is not None or (framer.ready and _is_over(connection, count, started)):
                return more, self._finish(rest, count, started)
            frame = framer.take() if framer.partial and connection.parked is None else None
        if connection.sender.unsent and not connection.waiting:
            return more, self._finish(None, count, started)
        return _MORE if more else _FINISHED

    async def _finish(
        self, rest: Coroutine[None, None, None] | None, count: int, started: float
    ) -> None:
        """Finish the last of ``count`` frames and answer all others that have arrived, in turns."""
        connection = self.connection
        framer = connection.framer
        while True:
            if rest is not None:
                await rest
                connection.last_active = connection.now()
            if framer.ready and _is_over(connection, count, started):
                await checkpoint()
                started, count = connection.now(), 0
            frame = framer.take() if framer.partial and connection.parked is None else None
            if frame is None:
                break
            rest = connection.answer_now(frame)
            count += 1
        if connection.sender.unsent and not connection.waiting:
            await connection.sender.send(())
            connection.last_active = connection.now()


def _is_over(connection: Connection, count: int, started: float) -> bool:
    """Return whether a turn is over after ``count`` answered frames."""
    return count >= TURN_FRAMES or connection.now() - started > TURN_S


async def _fail(error: BaseException) -> None:
    try:
        raise error
    finally:
        del error  # The error refers to this frame.


def _receive(sock: ByteSocket, framer: Framer) -> tuple[bool, memoryview | None]:
    """Receive once; return whether more bytes may have arrived, and the first whole frame.

    The caller does not get a reference to the bytes or the buffer, so that the buffer can be reused
    while the connection waits. Raises _HungUp at the end.
    """
    target = framer.target()
    if target is None:
        data = sock.recv(RECEIVED_BYTES)
        if not data:
            raise _HungUp
        return len(data) == RECEIVED_BYTES, framer.take_first(data)
    count = sock.recv_into(target)
    if not count:
        raise _HungUp
    framer.advance(count)
    return count == len(target), framer.take()
