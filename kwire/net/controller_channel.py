"""Sends requests to the active controller, and follows it when another node takes over.

Rules: an attempt ends when another leader is announced, so a node that hangs does not delay
requests; an attempt without an answer is repeated, as by Kafka's brokers, although it may have been
carried out; the connection to a node that does not lead is closed; requests forwarded for clients
have their own connection, because they may take longer than a session lasts.
"""

from __future__ import annotations

import ipaddress
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from kwire import errors
from kwire.codec.apis import BY_KEY, BY_NAME
from kwire.codec.schema import spec_of
from kwire.net.connection_pool import ConnectionPool, ConnectionRefused, OutOfReach
from kwire.net.framing import Disconnect
from kwire.types import METADATA_TOPIC
from kwire.waits import Signal

if TYPE_CHECKING:
    from kwire.codec.frame import Body
    from kwire.codec.messages.envelope import EnvelopeResponse
    from kwire.raftmeta.controller.mutation_quota import Requester
    from kwire.raftmeta.delivery import LeaderAndEpoch
    from kwire.raftmeta.quorum import RaftService
    from kwire.raftmeta.raft.voters import Node

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.05
PROBE_SECONDS: Final = 0.5
"""The time limit for hosts to refuse a connection, or to answer whether they are the leader."""
_NOT_CONTROLLER: Final = errors.NotController.code


class ControllerChannel:
    """The channel from one node to the active controller, which follows the quorum's leadership.

    Each purpose has its own pool of connections, because a request waits for earlier requests on
    its connection. The purposes are this broker's registration, the node's other requests, its ISR
    proposals, and clients' requests with the requests that they cause, which may take longer.

    The time limit of a request is that of its pool: that of a heartbeat, of a client's request or,
    for a broker's registration, of a session. Registrations need that long because each new
    registration invalidates a slow controller's response to the previous one.
    """

    def __init__(
        self,
        quorum: RaftService,
        *,
        registrations: ConnectionPool,
        own_requests: ConnectionPool,
        isr_proposals: ConnectionPool,
        client_requests: ConnectionPool,
    ) -> None:
        self._quorum = quorum
        self._own_requests = own_requests
        self._client_requests = client_requests
        self._pools = {
            BY_NAME["BrokerRegistration"].key: registrations,
            BY_NAME["ControllerRegistration"].key: own_requests,
            BY_NAME["BrokerHeartbeat"].key: own_requests,
            BY_NAME["AssignReplicasToDirs"].key: own_requests,
            BY_NAME["AlterPartition"].key: isr_proposals,
        }
        """The pool for each API key; all other requests share the pool of clients' requests."""
        self._leader_changed = Signal()
        self._attempts: dict[trio.CancelScope, Node] = {}
        """The attempts in progress, each with the node to which it is sent."""
        quorum.add_leadership_listener(self)

    async def send(self, request: Body, requester: Requester | None = None) -> Body:
        """Send one of this node's requests, on behalf of ``requester`` if given.

        ``requester`` is the client that indirectly caused the request.
        """
        if requester is not None:
            return await self._send_for(requester, request)
        key = spec_of(type(request)).api_key
        assert key is not None, "only requests are sent"
        pool = self._pools.get(key, self._client_requests)
        try:
            return await self._insist(pool, request)
        except errors.RequestTimedOut:
            node = self._quorum.leader_node()
            if node is not None and key in self._pools:
                pool.drop(node.host, node.port)  # A late answer would hold up the next request.
            raise

    async def _insist(self, pool: ConnectionPool, request: Body) -> Body:
        """Retry until an active controller answers; raise RequestTimedOut after the time limit."""
        with trio.move_on_after(pool.timeout_s):
            while True:
                node = self._quorum.leader_node()
                if node is not None:
                    response = await self._attempt(pool, node, request)
                    if response is not None:
                        return response
                await self._wait_leader_change()
        raise errors.RequestTimedOut("no answer from a controller")

    async def forward(self, frame: bytes, requester: Requester) -> bytes:
        """Forward a client's frame unchanged (KIP-590) and return the response's frame.

        Raises Disconnect if the client has to request the API versions again.
        """
        from kwire.codec.compile import encode
        from kwire.codec.messages.envelope import EnvelopeRequest
        from kwire.codec.messages.principal import DefaultPrincipal

        kind, name = requester.principal
        client_principal = DefaultPrincipal(type=kind, name=name, token_authenticated=False)
        request = EnvelopeRequest(
            request_data=frame,
            request_principal=b"\0\0" + encode(client_principal, 0),
            client_host_address=ipaddress.ip_address(requester.host).packed,
        )
        response: EnvelopeResponse = await self.send(request)
        if response.error_code == errors.UnsupportedVersion.code:
            raise Disconnect("the controller supports other versions; the client must ask again")
        answer = response.response_data
        # the envelope's error, not the request's
        if response.error_code != errors.NONE or answer is None:
            logger.warning("envelope refused code=%d", response.error_code)
            raise errors.UnknownServerError
        return answer

    async def _send_for(self, requester: Requester, request: Body) -> Body:
        from kwire.codec.frame import request_frame, response_to

        key = spec_of(type(request)).api_key
        assert key is not None
        frame = request_frame(key, BY_KEY[key].stable, 0, requester.client_id, request)[4:]
        try:
            answer = await self.forward(frame, requester)
        except Disconnect as error:
            raise errors.UnsupportedVersion(str(error)) from error
        return response_to(frame, answer)

    async def _attempt(self, pool: ConnectionPool, node: Node, request: Body) -> Body:
        """Return the answer, or None if the node is out of reach or no longer leads."""
        answer = None
        with trio.CancelScope() as attempt, suppress(OutOfReach):
            self._attempts[attempt] = node
            try:
                answer = await pool.call(node.host, node.port, request)
            finally:
                del self._attempts[attempt]
        if answer is None or _NOT_CONTROLLER in _error_codes(answer):
            pool.drop(node.host, node.port)
            return None
        return answer

    async def is_gone(self) -> bool:
        """Return whether too few controllers are running for one of them to be active.

        A controller is considered not running only if its host refuses connections now. If the host
        refused connections earlier but does not answer now, the controller may have restarted
        behind a broken network.
        """
        voters, refused = self._quorum.voters, set[int]()
        with trio.move_on_after(PROBE_SECONDS):
            async with trio.open_nursery() as nursery:
                for node in self._quorum.voter_nodes:
                    nursery.start_soon(self._probe, node, refused)
        return not voters.has_majority(set(voters.ids) - refused)

    async def has_no_active(self) -> bool:
        """Return whether no controller was active at some time since the call.

        All running controllers must answer that they do not lead. It is not enough that fewer than
        a majority are running: a leader whose followers have ended stays active until it resigns,
        and if the followers return before that, it continues to lead, with the broker sessions that
        it remembers.
        """
        voters, inactive = self._quorum.voters, set[int]()
        with trio.move_on_after(PROBE_SECONDS):
            async with trio.open_nursery() as nursery:
                for node in self._quorum.voter_nodes:
                    nursery.start_soon(self._ask_inactive, node, inactive)
        return inactive.issuperset(voters.ids) and await self.is_gone()

    async def _ask_inactive(self, node: Node, inactive: set[int]) -> None:
        """Add the node to ``inactive`` if it does not listen or answers that it does not lead."""
        from kwire.codec.messages.describe_quorum import DescribeQuorumRequest

        topic = DescribeQuorumRequest.TopicData
        partition = topic.PartitionData(partition_index=0)
        request = DescribeQuorumRequest(
            topics=[topic(topic_name=METADATA_TOPIC, partitions=[partition])]
        )
        self._own_requests.hurry(node.host, node.port)
        try:
            answer = await self._own_requests.call(node.host, node.port, request)
        except ConnectionRefused:
            inactive.add(node.id)
        except (OutOfReach, errors.UnsupportedVersion):
            return
        else:
            codes = {part.error_code for topic in answer.topics for part in topic.partitions}
            if codes == {errors.NotLeaderOrFollower.code}:
                inactive.add(node.id)

    async def _probe(self, node: Node, refused: set[int]) -> None:
        """Add the node to ``refused`` if its host refuses the connection."""
        from kwire.codec.messages.api_versions import ApiVersionsRequest
        from kwire.net.client import SOFTWARE

        request = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="1")
        self._own_requests.hurry(node.host, node.port)
        try:
            await self._own_requests.call(node.host, node.port, request)
        except ConnectionRefused:
            refused.add(node.id)
        except (OutOfReach, errors.UnsupportedVersion):  # Silent or of another version: it may run
            return

    async def _wait_leader_change(self) -> None:
        """Wait until a leader is announced, at most :data:`RETRY_SECONDS`."""
        with trio.move_on_after(RETRY_SECONDS):
            await self._leader_changed.wait()

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        """End attempts to reach a node that, according to the quorum, no longer leads."""
        if leader.leader_id is None:
            return
        self._leader_changed.notify()
        active = self._quorum.leader_node()
        for attempt, node in self._attempts.items():
            if node != active:  # an attempt to reach the new leader may continue
                attempt.cancel()


def _error_codes(response: Body) -> set[int]:
    """Return the error code of an answer, or its topics' codes if it has none of its own."""
    if hasattr(response, "error_code"):
        return {response.error_code}
    return {topic.error_code for topic in response.topics}
