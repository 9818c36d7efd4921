"""The connections of share members, which last: a share session ends with its connection.

A broker answers the requests of a connection one after the other, and notices the end of the
connection once it has answered the request before. A witness sees every response that a broker
makes, also one that does not arrive.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, cast

import attrs
import trio

from kwire.codec.frame import read_response, request_frame
from kwire.codec.schema import Request, spec_of
from kwire.net.connection_pool import OutOfReach
from kwire.net.listener import ConnectionRequests, ForConnection
from simulation.replication.links import Answer, SimListeners, Standing, address_of, host_of
from simulation.replication.wire import Wire

R = TypeVar("R")
_SIZE_BYTES: Final = 4
_PORT: Final = 9092
_CLOSING_S: Final = 0.5
"""The time in which a broker that can be reached learns that a connection is closed."""


@attrs.define(eq=False)
class BrokerEnd:
    """A broker's end of a connection."""

    listeners: "MemberListeners"
    requests: ConnectionRequests
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    async def answer(self, answer: "WitnessedAnswer", frame: bytes) -> None:
        async with self._turn:
            await answer.make(self.requests, frame)

    async def close(self) -> None:
        async with self._turn:
            self.requests.on_closed()


@attrs.frozen
class MemberFrame:
    """A request in transit, or the end of its connection if there is no data."""

    connection: "MemberConnection"
    data: bytes = b""
    on_answered: Callable[[bytes], None] = lambda frame: None
    """Called with the frame of the response, which is empty if there is none."""


@attrs.define(eq=False)
class MemberConnection:
    """A member's connection to the current process of a broker."""

    wire: Wire
    source: int
    node: int
    member_id: str
    timeout_s: float
    broker_end: BrokerEnd | None = None
    was_fenced: bool = False
    """True if the broker was fenced when it made the last response."""
    is_closed: bool = False
    """True once the member has closed it: a response that is made later releases its records."""

    async def call(
        self, request: Request[R], version: int, witness: Callable[[R | None], None]
    ) -> R:
        """Return the response to a request; raises OutOfReach if none arrives.

        ``witness`` is called with the response when the broker has made it, or with None if the
        broker cannot answer.
        """
        key = spec_of(type(request)).api_key
        assert key is not None
        responses: list[R] = []

        def on_answered(frame: bytes) -> None:
            if frame:
                responses.append(cast("R", read_response(key, version, frame)[1]))
            witness(responses[0] if responses else None)

        data = request_frame(key, version, 0, "sim", request)[_SIZE_BYTES:]
        with trio.move_on_after(self.timeout_s):
            answer = await self._carry(MemberFrame(self, data, on_answered))
            assert isinstance(answer, Answer)
            if answer.standing is Standing.EXCUSED:
                raise OutOfReach(self.node)
            self.was_fenced = answer.standing is Standing.FENCED
            return responses[0]
        raise OutOfReach(f"{self.node}: no answer for {self.timeout_s} s")

    async def close(self) -> None:
        """Close the connection; a broker that cannot be reached does not notice."""
        self.is_closed = True
        with trio.move_on_after(_CLOSING_S):
            try:
                await self._carry(MemberFrame(self))
            except OutOfReach:
                return

    async def _carry(self, frame: MemberFrame) -> object:
        return await self.wire.carry(self.source, address_of(host_of(self.node), _PORT), frame)


@attrs.define(eq=False)
class WitnessedAnswer(Answer):
    """A process's response to one request of a member."""

    on_answered: Callable[[bytes], None] = lambda frame: None

    async def make(self, requests: ConnectionRequests, frame: bytes) -> None:
        await super().make(requests, frame)
        self.on_answered(self.frame)


@attrs.define(eq=False)
class MemberListeners(SimListeners):
    """All listeners of one process, some of whose clients keep their connections."""

    async def _serve(self, name: str, for_connection: ForConnection, frame: object) -> object:
        if not isinstance(frame, MemberFrame):
            return await super()._serve(name, for_connection, frame)
        end = frame.connection.broker_end
        if end is None:
            requests = for_connection(name, "127.0.0.1", 0)
            end = frame.connection.broker_end = BrokerEnd(self, requests)
        if self._nursery is None or end.listeners is not self:
            raise OutOfReach(self.node)  # The connection was to a process that has ended.
        if not frame.data:
            self._context.run(self._nursery.start_soon, end.close)
            return None
        wait_writable = partial(self.wire.wait_writable, (self.node, frame.connection.source, name))
        answer = WitnessedAnswer(self.find_standing, wait_writable, on_answered=frame.on_answered)
        self._context.run(self._nursery.start_soon, end.answer, answer, frame.data)
        await answer.done.wait()
        if not answer.frame:
            raise OutOfReach(self.node)
        return answer
