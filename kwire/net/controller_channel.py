"""Asks whoever is the active controller, wherever it is, and follows it when it moves.

Rules: an attempt ends when another leader is announced, so a node that hangs holds nobody up; an
attempt without an answer may have been carried out, and is repeated as Kafka's brokers do; a node
that does not lead loses its connection; what is passed on for clients has a connection of its own,
for it may take longer than a session lasts.
"""

from __future__ import annotations

import ipaddress
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from kwire import errors
from kwire.codec.apis import BY_KEY
from kwire.net.connection_pool import ConnectionPool, NobodyListens, OutOfReach
from kwire.net.framing import Disconnect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kwire.raftmeta.controller.mutation_quota import Requester
    from kwire.raftmeta.raft.voters import Node
    from kwire.raftmeta.service import LeaderAndEpoch, RaftService
    from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 0.5
"""How long hosts have to say that nobody listens there."""
_NOT_CONTROLLER: Final = errors.NotController.code


class ControllerChannel:
    """The way from one node to the active controller; a listener of the quorum.

    ``asking`` carries what this node says for itself, ``forwarding`` what may take longer.
    """

    def __init__(
        self, quorum: RaftService, asking: ConnectionPool, forwarding: ConnectionPool
    ) -> None:
        self._quorum = quorum
        self._asking = asking
        self._forwarding = forwarding
        self._moved = trio.Event()
        self._attempts: dict[trio.CancelScope, Node] = {}
        """Attempts under way, with the controller that each asks."""
        self._refused: set[int] = set()
        """Controllers whose hosts said last that nobody listens there."""
        quorum.add_listener(self)

    async def ask(self, request: Any) -> Any:
        """For this node itself: as long as one heartbeat may take."""
        try:
            return await self._insist(self._asking, request)
        except errors.RequestTimedOut:
            node = self._quorum.leader_node()
            if node is not None:  # a late answer would hold up what is asked next
                self._asking.drop(node.host, node.port)
            raise

    async def insist(self, request: Any) -> Any:
        """For clients: as long as a request may take."""
        return await self._insist(self._forwarding, request)

    async def _insist(self, links: ConnectionPool, request: Any) -> Any:
        """Attempts until there is an answer of an active controller; RequestTimedOut."""
        with trio.move_on_after(links.timeout_s):
            while True:
                node = self._quorum.leader_node()
                if node is not None:
                    response = await self._attempt(links, node, request)
                    if response is not None:
                        return response
                await self._news()
        raise errors.RequestTimedOut("no answer from a controller")

    async def forward(self, frame: bytes, principal: tuple[str, str], host: str) -> bytes:
        """Pass a client's request on as it came (KIP-590); the answer as it is to be sent."""
        from kwire.codec.compile import encode
        from kwire.codec.messages.envelope import EnvelopeRequest
        from kwire.codec.messages.principal import DefaultPrincipal

        kind, name = principal
        told = DefaultPrincipal(type=kind, name=name, token_authenticated=False)
        request = EnvelopeRequest(
            request_data=frame,
            request_principal=b"\0\0" + encode(told, 0),
            client_host_address=ipaddress.ip_address(host).packed,
        )
        response = await self.insist(request)
        if response.error_code == errors.UnsupportedVersion.code:
            raise Disconnect("the controller speaks other versions; the client is to ask again")
        if response.error_code != errors.NONE:  # about the envelope: not the client's business
            logger.warning("envelope refused code=%d", response.error_code)
            raise errors.UnknownServerError
        answer: bytes = response.response_data
        return answer

    async def insist_for(self, request: Any, requester: Requester) -> Any:
        """For a client that did not send this request itself, but led to it."""
        from kwire.codec.frame import request_frame, response_to
        from kwire.codec.schema import spec_of

        key = spec_of(type(request)).api_key
        assert key is not None
        frame = request_frame(key, BY_KEY[key].stable, 0, requester.client_id, request)[4:]
        try:
            answer = await self.forward(frame, requester.principal, requester.host)
        except Disconnect as error:
            raise errors.UnsupportedVersion(str(error)) from error
        return response_to(frame, answer)

    async def _attempt(self, links: ConnectionPool, node: Node, request: Any) -> Any:
        """An answer, or None: the other is out of reach or does not lead any more."""
        answer = None
        with trio.CancelScope() as attempt, suppress(OutOfReach):
            self._attempts[attempt] = node
            try:
                answer = await links.call(node.host, node.port, request)
            finally:
                del self._attempts[attempt]
        if answer is None or _NOT_CONTROLLER in _codes(answer):
            links.drop(node.host, node.port)
            return None
        return answer

    async def is_gone(self) -> bool:
        """Whether so many controllers' processes are not there that none can be active."""
        voters = self._quorum.voters
        with trio.move_on_after(LOOK_SECONDS):
            async with trio.open_nursery() as nursery:
                for node in self._quorum.voter_nodes:
                    nursery.start_soon(self._look, node)
        return not voters.has_majority(set(voters.ids) - self._refused)

    async def _look(self, node: Node) -> None:
        """Whether anybody listens there; a host that says nothing leaves it as it was known."""
        from kwire.codec.messages.api_versions import ApiVersionsRequest
        from kwire.net.client import SOFTWARE

        request = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="1")
        try:
            await self._asking.call(node.host, node.port, request)
        except NobodyListens:
            self._refused.add(node.id)
        except OutOfReach:
            return
        except errors.UnsupportedVersion:  # whatever it speaks, it answers
            self._refused.discard(node.id)
        else:
            self._refused.discard(node.id)

    async def _news(self) -> None:
        """A moment, or less when a leader is announced."""
        with trio.move_on_after(RETRY_SECONDS):
            await self._moved.wait()

    # What the quorum says -------------------------------------------------------------------
    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Of no interest here."""

    def on_snapshot(self, reader: SnapshotReader) -> None:
        """Of no interest here."""

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        if leader.leader_id is None:
            return
        self._moved.set()
        self._moved = trio.Event()
        active = self._quorum.leader_node()
        for attempt, node in self._attempts.items():
            if node != active:  # one that was asked before it was announced is heard out
                attempt.cancel()


def _codes(response: Any) -> set[int]:
    """An answer's error codes: the whole's, or those of its topics where it has none."""
    if hasattr(response, "error_code"):
        return {response.error_code}
    return {topic.error_code for topic in response.topics}
