"""The connections of simulated nodes, which carry requests as encoded frames.

:class:`SimNetwork` replaces a node's connections to other nodes, and :class:`SimListeners` its
listeners. The dispatcher, the codec and the handlers are those of the product.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from enum import Enum, auto
from functools import partial
from math import inf
from typing import Final, Self

import attrs
import trio

from kwire.clock import Clock
from kwire.codec.apis import BY_KEY
from kwire.codec.compile import Part
from kwire.codec.frame import Body, read_response, request_frame
from kwire.codec.schema import spec_of
from kwire.log.region import FileRegion
from kwire.net.connection_pool import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    ConnectionPool,
    ConnectionRefused,
    Network,
    OutOfReach,
)
from kwire.net.framing import Disconnect
from kwire.net.limits import Limits
from kwire.net.listener import Address, ConnectionRequests, ForConnection, finish_answer
from kwire.raftmeta.metadata.quota_lookup import Quotas
from kwire.raftmeta.raft.state import Random
from simulation.replication.wire import Serve, Wire

_SIZE_BYTES = 4
CONNECTED_S: Final = 0.01
"""The time until a connection to a process is accepted or refused."""


class Standing(Enum):
    """Whether a broker may serve clients, by the committed metadata."""

    SERVING = auto()
    FENCED = auto()
    EXCUSED = auto()
    """Fenced, but a firewall hides that from the broker (decisions 20 and 21).

    Clients of the simulation take no answer then: it may be out of date.
    """


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

    def __init__(
        self, wire: Wire, source: int, timeout_s: float, backoff_s: tuple[float, float] = (0, 0)
    ) -> None:
        """``backoff_s``: the first and the longest delay after a refused connection."""
        self.wire, self.source, self.timeout_s = wire, source, timeout_s
        self._backoff_s = backoff_s
        self._refusals: dict[str, tuple[int, float]] = {}
        """By host: the number of refused connections in a row, and when the back-off is over."""
        self.was_fenced = False
        """True if the last response came from a broker that must not have served."""

    async def call(
        self, host: str, port: int, request: Body, *, version: int | None = None
    ) -> Body:
        """Send a request and return its response; raises OutOfReach if none arrives."""
        key = spec_of(type(request)).api_key
        assert key is not None
        version = BY_KEY[key].stable if version is None else version
        frame = request_frame(key, version, 0, "sim", request)[_SIZE_BYTES:]
        with trio.move_on_after(self.timeout_s):
            answer = await self._carry(address_of(host, port), SentFrame(self.source, frame))
            assert isinstance(answer, Answer)
            if answer.standing is Standing.EXCUSED and self.source < 0:
                raise OutOfReach(f"{host}: fenced, but a firewall hides that")
            self.was_fenced = answer.standing is Standing.FENCED
            return read_response(key, version, answer.frame)[1]
        raise OutOfReach(f"{host}: no answer for {self.timeout_s} s")

    async def _carry(self, host: str, frame: SentFrame) -> object:
        """Deliver a request; fail at once during the back-off, as the product's pool does."""
        count, retry_at = self._refusals.get(host, (0, -inf))
        if trio.current_time() < retry_at:
            raise OutOfReach(f"{host}: no attempt until the back-off is over")
        try:
            answer = await self.wire.carry(self.source, host, frame)
        except ConnectionRefused:
            first_s, longest_s = self._backoff_s
            delay_s = min(first_s * 2 ** min(count, 16), longest_s)
            self._refusals[host] = count + 1, trio.current_time() + delay_s
            raise
        self._refusals.pop(host, None)
        return answer

    def hurry(self, host: str, port: int) -> None:
        """Let the next call be sent at once, although the back-off is not over."""
        address = address_of(host, port)
        if address in self._refusals:
            self._refusals[address] = self._refusals[address][0], -inf

    def drop(self, host: str, port: int) -> None:
        """Do nothing, because requests do not share connections."""


class SimNetwork(Network):
    """The connections of one node to others."""

    def __init__(self, clock: Clock, random: Random, wire: Wire, node: int) -> None:
        super().__init__(clock, random)
        self.wire, self.node = wire, node

    def pool(
        self,
        client_id: str,
        timeout_s: float,
        *,
        backoff_s: float = BACKOFF_S,
        backoff_max_s: float = BACKOFF_MAX_S,
        **_: object,
    ) -> FramePool:
        return FramePool(self.wire, self.node, timeout_s, (backoff_s, backoff_max_s))

    async def connect_idle(
        self, host: str, port: int, *, is_numeric: bool, **_: object
    ) -> "SimIdleConnection":
        await trio.sleep(CONNECTED_S)
        link = self.node, int(host.removeprefix(host_of(0)[:-1]))
        if self.wire.is_cut(*link):
            await trio.sleep_forever()
        server = self.wire.servers.get(address_of(host, port))
        if server is None or link in self.wire.refused:
            raise ConnectionRefusedError(host)
        return SimIdleConnection(Address(host, port), self.wire, link, server)


@attrs.frozen
class SimIdleConnection:
    """A connection that ends with the process of the other node, or is reset by a firewall."""

    address: Address
    wire: Wire
    link: tuple[int, int]
    """The node that connected, and the other one."""
    server: tuple[int, Serve]

    async def wait_end(self) -> None:
        while self.wire.servers.get(
            address_of(*self.address)
        ) is self.server and not self.wire.resets(*self.link):
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
    find_standing: Callable[[], Standing]
    """Returns whether this broker may serve now."""
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
        answer = Answer(self.find_standing, wait_writable)
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

    find_standing: Callable[[], Standing]
    wait_writable: Callable[[], Awaitable[None]]
    """Waits until the socket accepts the response."""
    done: trio.Event = attrs.field(factory=trio.Event)
    frame: bytes = b""
    standing: Standing = Standing.SERVING

    async def make(self, requests: ConnectionRequests, frame: bytes) -> None:
        try:
            parts = await finish_answer(requests.answer_now(memoryview(frame)))
            self.standing = self.find_standing()
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
