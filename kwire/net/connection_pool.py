"""Connections from this node to others: opened on first use, reused, retried with a backoff.

Rules: there is one connection for each address and purpose; a request that is not answered in time
closes its connection, because answers arrive in order, and a missing answer would hold up all later
ones; an unreachable node is retried after 20 ms, then with delays that double up to a second, and
in the meantime calls fail at once. A cancelled call leaves the connection open for other callers.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from kwire.waits import Deadlines

if TYPE_CHECKING:
    from kwire.clock import Clock
    from kwire.codec.schema import Request
    from kwire.net.client import NodeClient
    from kwire.net.idle_connection import IdleConnection
    from kwire.net.node_login import NodeLogin
    from kwire.net.tls.client_tls import ClientTls
    from kwire.raftmeta.raft.events import OwnRequest, RaftResponse
    from kwire.raftmeta.raft.state import Random
    from kwire.raftmeta.raft.voters import Node

Resp = TypeVar("Resp")

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""The time limit for connecting; after it, the node is considered unreachable."""

BACKOFF_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0


class OutOfReach(Exception):
    """The other node did not answer; it may or may not have received the request."""


class ConnectionRefused(OutOfReach):
    """The other node's host refused the connection: its process is not running."""


@attrs.define(eq=False, repr=False)
class _Link:
    """An address, with the connection to it or the time of the next attempt."""

    host: str
    port: int
    client: NodeClient | None = None
    connecting: trio.Event | None = None
    refused: bool = False
    """True if the last attempt to connect was refused."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failures: int = 0
    retry_at: float = 0.0


@attrs.define(eq=False, repr=False)
class Network:
    """The nursery, clock and randomness that all of a node's connections to others share."""

    clock: Clock
    random: Random
    nursery: trio.Nursery | None = None
    deadlines: Deadlines = attrs.field(init=False)
    """The deadlines of the calls."""

    def __attrs_post_init__(self) -> None:
        self.deadlines = Deadlines(self.clock.now)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            await nursery.start(self.deadlines.run)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self.nursery = None

    def pool(
        self,
        client_id: str,
        timeout_s: float,
        *,
        backoff_s: float = BACKOFF_S,
        backoff_max_s: float = BACKOFF_MAX_S,
        tls: ClientTls | None = None,
        login: NodeLogin | None = None,
    ) -> ConnectionPool:
        """Return a pool of connections for one purpose; ``timeout_s`` limits each answer.

        ``tls`` is for the other nodes' listener; None if it is not encrypted. ``login``
        authenticates this node to the others; None if they do not require that.
        """
        return ConnectionPool(self, client_id, timeout_s, backoff_s, backoff_max_s, tls, login)

    async def connect_idle(
        self,
        host: str,
        port: int,
        *,
        is_numeric: bool,
        tls: ClientTls | None = None,
        server_name: str = "",
    ) -> IdleConnection:
        """Return a connection over which nothing is sent, to notice the other process's end.

        ``is_numeric``: the host is an address, not a name. With ``tls``, the other node must be
        ``server_name``. Raises ConnectionRefusedError only if a numeric address refused, and
        otherwise OSError or UnicodeError.
        """
        from kwire.net.idle_connection import connect

        return await connect(host, port, is_numeric=is_numeric, tls=tls, server_name=server_name)


@attrs.define(eq=False, repr=False)
class ConnectionPool:
    """All connections of one node for one purpose."""

    network: Network
    client_id: str
    timeout_s: float = 30.0
    """The time limit for an answer."""
    backoff_s: float = BACKOFF_S
    backoff_max_s: float = BACKOFF_MAX_S
    tls: ClientTls | None = None
    login: NodeLogin | None = None
    _links: dict[tuple[str, int], _Link] = attrs.field(factory=dict)

    async def call(self, host: str, port: int, request: Request[Resp]) -> Resp:
        """Send a request and return its response.

        Raises OutOfReach if there is no answer, and UnsupportedVersion if the other node cannot
        read the request.
        """
        from kwire.net.client import ConnectionLost

        link = self._links.get((host, port))
        if link is None:
            link = self._links[host, port] = _Link(host, port)
        deadline = self.network.clock.now() + self.timeout_s
        client = await self._connect_until(deadline, link)
        try:
            call = client.begin(request)
            await self.network.deadlines.wait(call.done, deadline)
            if call.response is None and not client.lost:
                self.drop(host, port)
                raise self._timeout_error(link)
            return client.end(call)
        except ConnectionLost as error:
            # Raises ConnectionRefused if no process listens.
            await self._connect_until(deadline, link)
            raise OutOfReach(str(error)) from error

    def drop(self, host: str, port: int) -> None:
        """Close the connection to an address; calls that wait for an answer there fail."""
        link = self._links.get((host, port))
        if link is not None and link.client is not None:
            link.client = None
            link.scope.cancel()

    def hurry(self, host: str, port: int) -> None:
        """Let the next call connect at once, although the back-off is not over.

        During the back-off, calls fail without an attempt, so they do not show whether the host
        refuses connections now.
        """
        link = self._links.get((host, port))
        if link is not None:
            link.retry_at = -math.inf

    def _timeout_error(self, link: _Link) -> OutOfReach:
        return OutOfReach(f"{link.host}:{link.port}: no answer for {self.timeout_s} s")

    async def _connect_until(self, deadline: float, link: _Link) -> NodeClient:
        client = link.client
        if client is not None and not client.lost:
            return client
        with trio.move_on_at(deadline):
            return await self._connect(link)
        raise self._timeout_error(link)

    async def _connect(self, link: _Link) -> NodeClient:
        """Return the link's connection, connecting first if necessary."""
        while link.client is None or link.client.lost:
            if link.connecting is not None:
                await link.connecting.wait()
                if link.client is None:
                    kind = ConnectionRefused if link.refused else OutOfReach
                    raise kind(f"{link.host}:{link.port}")
                continue
            nursery = self.network.nursery
            if nursery is None or self.network.clock.now() < link.retry_at:
                raise OutOfReach(f"{link.host}:{link.port}: waiting before the next attempt")
            link.client, link.connecting, link.refused = None, trio.Event(), False
            link.scope = trio.CancelScope()
            nursery.start_soon(self._serve, link, link.scope)
        return link.client

    async def _serve(self, link: _Link, scope: trio.CancelScope) -> None:
        from kwire.net.client import ConnectionLost, NodeClient

        client = NodeClient(link.host, link.port, self.client_id, self.tls, login=self.login)
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    with trio.move_on_after(CONNECT_SECONDS) as connecting:
                        await nursery.start(client.run)
                        self._on_connected(link, client)
                    if connecting.cancelled_caught:
                        nursery.cancel_scope.cancel()
        except* ConnectionLost as lost:
            link.refused = all(getattr(end, "refused", False) for end in lost.exceptions)
            logger.debug("connection ended client=%s reason=%s", self.client_id, lost.exceptions[0])
        finally:
            if link.scope is scope:
                self._on_closed(link, client)

    @staticmethod
    def _on_connected(link: _Link, client: NodeClient) -> None:
        link.client, link.failures = client, 0
        if link.connecting is not None:
            link.connecting.set()
            link.connecting = None

    def _on_closed(self, link: _Link, client: NodeClient) -> None:
        if link.client is client:
            link.client = None
        connecting, link.connecting = link.connecting, None
        if connecting is not None:
            delay = min(self.backoff_s * (1 << link.failures), self.backoff_max_s)
            link.failures = min(link.failures + 1, 16)
            spread = 0.8 + 0.4 * self.network.random.random()
            link.retry_at = self.network.clock.now() + delay * spread
            connecting.set()


@attrs.define(eq=False, repr=False)
class RaftPeers:
    """The metadata quorum's connections to its other nodes."""

    pool: ConnectionPool

    async def call(self, node: Node, request: OwnRequest) -> RaftResponse | None:
        """Return the answer of another node of the quorum, or None if there is none.

        Raises ConnectionRefusedError if the node's host refused the connection.
        """
        from kwire.errors import UnsupportedVersion

        try:
            response: RaftResponse = await self.pool.call(node.host, node.port, request)
        except ConnectionRefused as error:
            raise ConnectionRefusedError from error
        except (OutOfReach, UnsupportedVersion) as error:
            logger.debug("no answer node=%d reason=%s", node.id, error)
            return None
        return response
