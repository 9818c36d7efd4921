"""Requests of this node to other nodes of the quorum.

Rule: each request is answered once to the raft machine, with None if no answer came in time.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import trio

from kwire import errors
from kwire.raftmeta.raft.events import Answered, Send
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import Node

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import OwnRequest, RaftResponse

logger = logging.getLogger(__name__)


class Peers(Protocol):
    """The network to other nodes: None when there is no answer, ConnectionRefusedError when
    no process listens there."""

    async def call(self, node: Node, request: "OwnRequest") -> "RaftResponse | None": ...


class NoPeers:
    """The network of a quorum of one."""

    async def call(self, node: Node, request: "OwnRequest") -> "RaftResponse | None":
        return None


class NetworkChannel:
    """The requests in flight; ``on_answer`` takes their answers."""

    def __init__(
        self, peers: Peers, config: RaftConfig, on_answer: Callable[[Answered], object]
    ) -> None:
        self._peers = peers
        self._config = config
        self._on_answer = on_answer
        self._foreign: set[int] = set()
        """Ids of nodes that answered last that they are of another cluster."""

    async def call(self, send: Send) -> None:
        """Send a request to its node; at most one of a kind is in flight to a node.

        The network's own timeout ends first: it closes the connection that does not answer.
        """
        response: RaftResponse | None = None
        refused = False
        with trio.move_on_after(2 * self._config.request_timeout_s):
            try:
                response = await self._peers.call(send.node, send.request)
            except ConnectionRefusedError:
                refused = True
        if response is not None:
            self._check_cluster(send.node, response.error_code)
        self._on_answer(Answered(send.call_id, response, refused))

    def _check_cluster(self, node: Node, error_code: int) -> None:
        """Log a node of another cluster once, until its answers change; it is still asked."""
        if error_code != errors.InconsistentClusterId.code:
            self._foreign.discard(node.id)
        elif node.id not in self._foreign:
            self._foreign.add(node.id)
            logger.error(
                "another cluster's controller id=%d address=%s:%d own cluster=%s",
                node.id,
                node.host,
                node.port,
                self._config.cluster_id,
            )
