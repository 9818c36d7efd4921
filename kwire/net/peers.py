"""Connections from this node to others: made on first use, kept, and left alone after failures.

Rules: one connection an address and client id; a request that is given up takes its connection with
it, for answers come in order and what is stuck would hold up all that follows; a node out of reach
is tried again after 20 ms, then later and later up to a second, and meanwhile a call fails at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

if TYPE_CHECKING:
    from kwire.clock import Clock
    from kwire.net.client import NodeClient
    from kwire.raftmeta.events import OwnRequest, RaftResponse
    from kwire.raftmeta.state import Random
    from kwire.raftmeta.voters import Node

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""How long a connection may take to be made; a longer silence is a node out of reach."""


class OutOfReach(Exception):
    """The other node did not answer; whether it has seen the request is not known."""


@attrs.define(eq=False)
class _Link:
    """One address: the connection to it, or when to try again."""

    host: str
    port: int
    client: NodeClient | None = None
    connecting: trio.Event | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failures: int = 0
    retry_at: float = 0.0


@attrs.define(eq=False)
class Links:
    """All connections of one node under one client id; :meth:`run` keeps them."""

    client_id: str
    clock: Clock
    random: Random
    backoff_s: float = 0.02
    backoff_max_s: float = 1.0
    _links: dict[tuple[str, int], _Link] = attrs.field(factory=dict)
    _nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def call(self, host: str, port: int, request: Any) -> Any:
        """Send a request; OutOfReach if no answer comes, UnsupportedVersion if none can."""
        from kwire.net.client import ConnectionLost

        link = self._links.get((host, port))
        if link is None:
            link = self._links[host, port] = _Link(host, port)
        client = await self._connected(link)
        answered = False
        try:
            response = await client.call(request)
            answered = True
            return response
        except ConnectionLost as error:
            raise OutOfReach(str(error)) from error
        finally:
            if not answered and link.client is client:
                link.scope.cancel()
                link.client = None

    async def _connected(self, link: _Link) -> NodeClient:
        while link.client is None or link.client.lost:
            if link.connecting is not None:
                await link.connecting.wait()
                if link.client is None:
                    raise OutOfReach(f"{link.host}:{link.port}")
                continue
            if self._nursery is None or self.clock.now() < link.retry_at:
                raise OutOfReach(f"{link.host}:{link.port}: left alone for a while")
            link.client, link.connecting = None, trio.Event()
            link.scope = trio.CancelScope()
            self._nursery.start_soon(self._serve, link, link.scope)
        return link.client

    async def _serve(self, link: _Link, scope: trio.CancelScope) -> None:
        from kwire.net.client import ConnectionLost, NodeClient

        client = NodeClient(link.host, link.port, self.client_id)
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    with trio.move_on_after(CONNECT_SECONDS) as patience:
                        await nursery.start(client.run)
                        self._made(link, client)
                    if patience.cancelled_caught:
                        nursery.cancel_scope.cancel()
        except* ConnectionLost as lost:
            log.debug("connection ended client=%s reason=%s", self.client_id, lost.exceptions[0])
        finally:
            if link.scope is scope:
                self._ended(link, client)

    @staticmethod
    def _made(link: _Link, client: NodeClient) -> None:
        link.client, link.failures = client, 0
        if link.connecting is not None:
            link.connecting.set()
            link.connecting = None

    def _ended(self, link: _Link, client: NodeClient) -> None:
        if link.client is client:
            link.client = None
        waiting, link.connecting = link.connecting, None
        if waiting is not None:
            delay = min(self.backoff_s * (1 << link.failures), self.backoff_max_s)
            link.failures = min(link.failures + 1, 16)
            link.retry_at = self.clock.now() + delay * (0.8 + 0.4 * self.random.random())
            waiting.set()


@attrs.define(eq=False)
class RaftPeers:
    """The network of the metadata quorum."""

    links: Links

    async def call(self, node: Node, request: OwnRequest) -> RaftResponse | None:
        """The answer of another node of the quorum; None if there is none."""
        from kwire.errors import UnsupportedVersion

        try:
            response: RaftResponse = await self.links.call(node.host, node.port, request)
        except (OutOfReach, UnsupportedVersion) as error:
            log.debug("no answer node=%d reason=%s", node.id, error)
            return None
        return response
