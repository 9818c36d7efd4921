"""The connections of simulated nodes, which carry requests as encoded frames.

:class:`SimNetwork` replaces a node's connections to other nodes, and :class:`SimListeners` its
listeners. The dispatcher, the codec and the handlers are those of the product.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Final, Self

import attrs
import trio

from kwire.clock import Clock
from kwire.codec.apis import BY_KEY
from kwire.codec.compile import Part
from kwire.codec.frame import Body, read_response, request_frame
from kwire.codec.schema import spec_of
from kwire.log.region import FileRegion
from kwire.net.connection_pool import ConnectionPool, Network, OutOfReach
from kwire.net.framing import Disconnect
from kwire.net.limits import Limits
from kwire.net.listener import Address, ConnectionRequests, ForConnection, finish_answer
from kwire.raftmeta.metadata.quota_lookup import Quotas
from kwire.raftmeta.raft.state import Random
from simulation.replication.wire import Serve, Wire

_SIZE_BYTES = 4
CONNECTED_S: Final = 0.01
"""The time until a connection to a process is accepted or refused."""


def host_of(node: int) -> str:
    return f"node-{node}"


def address_of(host: str, port: int) -> str:
    """Return the name by which the network knows a listener."""
    return f"{host}:{port}"


@attrs.frozen
class SentFrame:
    """A request in transit."""

    source: int
    data: bytes


class FramePool(ConnectionPool):
    """The connections of one node or client for one purpose."""

    def __init__(self, wire: Wire, source: int, timeout_s: float) -> None:
        self.wire, self.source, self.timeout_s = wire, source, timeout_s
        self.was_fenced = False
        """True if the last response came from a broker that was fenced when it answered."""

    async def call(
        self, host: str, port: int, request: Body, *, version: int | None = None
    ) -> Body:
        """Send a request and return its response; raises OutOfReach if none arrives."""
        key = spec_of(type(request)).api_key
        assert key is not None
        version = BY_KEY[key].stable if version is None else version
        frame = request_frame(key, version, 0, "sim", request)[_SIZE_BYTES:]
        with trio.move_on_after(self.timeout_s):
            request_sent = SentFrame(self.source, frame)
            answer = await self.wire.carry(self.source, address_of(host, port), request_sent)
            assert isinstance(answer, Answer)
            self.was_fenced = answer.was_fenced
            return read_response(key, version, answer.frame)[1]
        raise OutOfReach(f"{host}: no answer for {self.timeout_s} s")

    def drop(self, host: str, port: int) -> None:
        """Do nothing, because requests do not share connections."""


class SimNetwork(Network):
    """The connections of one node to others."""

    def __init__(self, clock: Clock, random: Random, wire: Wire, node: int) -> None:
        super().__init__(clock, random)
        self.wire, self.node = wire, node

    def pool(self, client_id: str, timeout_s: float, **_: object) -> FramePool:
        return FramePool(self.wire, self.node, timeout_s)

    async def connect_idle(
        self, host: str, port: int, *, is_numeric: bool, **_: object
    ) -> "SimIdleConnection":
        await trio.sleep(CONNECTED_S)
        if self.wire.is_cut(self.node, int(host.removeprefix(host_of(0)[:-1]))):
            await trio.sleep_forever()
        server = self.wire.servers.get(address_of(host, port))
        if server is None:
            raise ConnectionRefusedError(host)
        return SimIdleConnection(Address(host, port), self.wire, server)


@attrs.frozen
class SimIdleConnection:
    """A connection that ends with the process of the other node."""

    address: Address
    wire: Wire
    server: tuple[int, Serve]

    async def wait_end(self) -> None:
        while self.wire.servers.get(address_of(*self.address)) is self.server:
            await self.wire.closed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Do nothing, because the connection holds nothing."""


@attrs.define(eq=False)
class SimListeners:
    """All listeners of one process."""

    wire: Wire
    node: int
    is_fenced: Callable[[], bool]
    """Returns whether this broker is fenced in the committed metadata."""
    _addresses: dict[str, Address] = attrs.field(factory=dict)
    _served: dict[str, Serve] = attrs.field(factory=dict)
    _nursery: trio.Nursery | None = None
    _context: Context = attrs.field(factory=copy_context)

    def bind(
        self, name: str, host: str, port: int, *, protected: bool = False, tls: object = None
    ) -> Address:
        assert tls is None, "simulated connections are not encrypted"
        address = self._addresses[name] = Address(host, port)
        return address

    def address(self, name: str) -> Address:
        return self._addresses[name]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until cancelled."""
        self._context = copy_context()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self.stop_accepting()

    def accept(self, name: str, for_connection: ForConnection) -> None:
        host = address_of(*self._addresses[name])
        self._served[host] = serve = partial(self._serve, name, for_connection)
        self.wire.servers[host] = self.node, serve

    def stop_accepting(self) -> None:
        """Reject all further requests."""
        for host, serve in self._served.items():
            if self.wire.servers.get(host, (0, None))[1] is serve:
                del self.wire.servers[host]
        self._served.clear()
        self.wire.closed.notify()

    def relimit(self, limits: Limits) -> None:
        """Do nothing, because simulated connections have no limits."""

    def limit_addresses(self, quotas: Quotas) -> None:
        """Do nothing, because simulated connections have no limits."""

    def close(self) -> None:
        """Do nothing, because a bound address is not taken until it is served."""

    async def _serve(self, name: str, for_connection: ForConnection, frame: object) -> object:
        """Answer a request in a task of this process; raises OutOfReach if the process ends."""
        if self._nursery is None:
            raise OutOfReach(self.node)
        assert isinstance(frame, SentFrame)
        wait_writable = partial(self.wire.wait_writable, (self.node, frame.source, name))
        answer = Answer(self.is_fenced, wait_writable)
        requests = for_connection(name, "127.0.0.1", 0)
        serve = partial(answer.make, requests, frame.data)
        self._context.run(self._nursery.start_soon, serve)
        await answer.done.wait()
        if not answer.frame:
            raise OutOfReach(self.node)
        return answer


@attrs.define(eq=False)
class Answer:
    """A process's response to one request; the frame is empty without a response."""

    is_fenced: Callable[[], bool]
    wait_writable: Callable[[], Awaitable[None]]
    """Waits until the socket accepts the response."""
    done: trio.Event = attrs.field(factory=trio.Event)
    frame: bytes = b""
    was_fenced: bool = False

    async def make(self, requests: ConnectionRequests, frame: bytes) -> None:
        try:
            parts = await finish_answer(requests.answer_now(memoryview(frame)))
            self.was_fenced = self.is_fenced()
            self.frame = (await self._send(parts or ()))[_SIZE_BYTES:]
        except (Disconnect, OSError):
            self.frame = b""  # The connection is closed, even if the records cannot be read.
        finally:
            self.done.set()

    async def _send(self, parts: Sequence[Part]) -> bytes:
        """Return the bytes of a response as they are when the socket accepts them.

        Records are read from the file only at that time: meanwhile the log may have been truncated,
        and other records written in their place.
        """
        try:
            await self.wait_writable()
        except BaseException:
            for part in parts:
                if isinstance(part, FileRegion):
                    part.close()
            raise
        return join_parts(parts)


def join_parts(parts: Sequence[Part]) -> bytes:
    """Return the bytes of a response; its records are read only now, as in a real send."""
    data = bytearray()
    for part in parts:
        if isinstance(part, FileRegion):
            with part:
                content = part.read()
            if len(content) < len(part):
                raise Disconnect("the log was truncated before its records were sent")
            data += content
        else:
            data += part
    return bytes(data)
