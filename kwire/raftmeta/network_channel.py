"""Requests of this node to other nodes of the quorum.

Rule: each request is answered exactly once to the raft state machine, with None if no answer
arrived in time.
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
    """The network to other nodes.

    ``call`` returns None when there is no answer, and raises ConnectionRefusedError when no process
    listens at the address.
    """

    async def call(self, node: Node, request: "OwnRequest") -> "RaftResponse | None": ...


class NoPeers:
    """The network of a quorum of one."""

    async def call(self, node: Node, request: "OwnRequest") -> "RaftResponse | None":
        return None


class NetworkChannel:
    """The requests in flight; ``on_answer`` receives their answers."""

    def __init__(
        self, peers: Peers, config: RaftConfig, on_answer: Callable[[Answered], object]
    ) -> None:
        self._peers = peers
        self._config = config
        self._on_answer = on_answer
        self._foreign: set[int] = set()
        """Ids of nodes whose last answer said that they belong to another cluster."""

    async def call(self, send: Send) -> None:
        """Send a request to its node; at most one request of each kind is in flight per node.

        The network's own timeout is shorter: it closes a connection that does not answer.
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
        """Log once that a node belongs to another cluster, until that changes; keep sending."""
        if error_code != errors.InconsistentClusterId.code:
            self._foreign.discard(node.id)
        elif node.id not in self._foreign:
            self._foreign.add(node.id)
            logger.error(
                "another cluster's controller id=%d address=%s:%d own cluster=%s; name only "
                "controllers of this cluster in controller.quorum.bootstrap.servers or "
                "controller.quorum.voters, and format new nodes with its id",
                node.id,
                node.host,
                node.port,
                self._config.cluster_id,
            )
