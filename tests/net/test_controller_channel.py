"""Requests to the active controller: they follow a failover, and end after their time limit."""

import socket
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.clock import SystemClock
from kwire.codec.frame import read_header, response_parts
from kwire.codec.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import BrokerRegistrationRequest
from kwire.codec.messages.controller_registration import ControllerRegistrationRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kwire.codec.messages.describe_quorum import DescribeQuorumResponse
from kwire.codec.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.net.connection_pool import ConnectionRefused, Network, OutOfReach
from kwire.net.controller_channel import ControllerChannel
from kwire.net.framing import Disconnect
from kwire.raftmeta.controller.mutation_quota import Requester
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.types import METADATA_TOPIC
from tests.support.codec.requests import read_request

HEARTBEAT = BrokerHeartbeatRequest(
    broker_id=1, broker_epoch=7, current_metadata_offset=9, want_fence=False, want_shut_down=False
)
ALIVE = BrokerHeartbeatResponse(is_fenced=False, should_shut_down=False)
FIRST = Node(1, "h", 1)
CREATE = CreateTopicsRequest(topics=[], timeout_ms=1000)
REGISTRATION = BrokerRegistrationRequest(
    broker_id=1, cluster_id="c", incarnation_id=b"i" * 16, listeners=[], features=[], rack=None
)
SESSION_S = 9.0
ALICE = Requester(("User", "alice"), "tool", "10.1.2.3")
MOVED = errors.NotController.code


@attrs.define
class RaftService:
    leader: Node | None = FIRST
    voters: VoterSet = attrs.field(
        factory=lambda: VoterSet.of(
            Voter(ReplicaKey(port), (VoterEndpoint("C", "h", port),)) for port in (1, 2, 3)
        )
    )

    @property
    def voter_nodes(self) -> tuple[Node, ...]:
        return self.voters.nodes()

    def leader_node(self) -> Node | None:
        return self.leader

    def add_leadership_listener(self, listener: Any) -> None:
        pass


@attrs.define
class ConnectionPool:
    """Calls functions, by port, that return a node's answer, raise, or return None to hang."""

    answers: dict[int, Callable[[], Any]]
    timeout_s: float = 30.0
    requests: list[tuple[int, Any]] = attrs.field(factory=list)
    dropped: list[int] = attrs.field(factory=list)

    async def call(self, host: str, port: int, request: Any) -> Any:
        self.requests.append((port, request))
        await trio.sleep(0.001)
        answer = self.answers[port]()
        if answer is None:
            await trio.sleep_forever()
        return answer

    def drop(self, host: str, port: int) -> None:
        self.dropped.append(port)

    def hurry(self, host: str, port: int) -> None:
        """Do nothing, because there is no back-off."""


def time_out() -> Any:
    raise OutOfReach("h")


def unused_port() -> int:
    """Return a port at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def channel_over(pool: ConnectionPool, quorum: RaftService) -> ControllerChannel:
    connections: Any = pool
    return ControllerChannel(
        quorum,  # type: ignore[arg-type]
        registrations=ConnectionPool(pool.answers, SESSION_S),  # type: ignore[arg-type]
        own_requests=connections,
        isr_proposals=connections,
        client_requests=connections,
    )


def announce(channel: ControllerChannel, quorum: RaftService, leader: int) -> None:
    quorum.leader = Node(leader, "h", leader)
    channel.on_leadership(LeaderAndEpoch(leader, leader))


async def test_request_goes_to_the_active_controller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pool = ConnectionPool({1: lambda: ALIVE})
    assert not (await channel_over(pool, RaftService()).send(HEARTBEAT)).is_fenced
    assert pool.requests == [(1, HEARTBEAT)]


@pytest.mark.parametrize("leader", [FIRST, None])
async def test_own_request_times_out_after_the_heartbeat_interval(
    autojump_clock: trio.testing.MockClock, leader: Node | None
) -> None:
    pool = ConnectionPool({1: time_out}, timeout_s=2.0)
    with pytest.raises(errors.RequestTimedOut):
        await channel_over(pool, RaftService(leader)).send(HEARTBEAT)
    assert trio.current_time() == pytest.approx(2.0)


async def test_registration_waits_as_long_as_a_session_lasts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A repeated registration has a new epoch, so the broker would never use the first answer."""
    pool = ConnectionPool({1: lambda: None}, timeout_s=2.0)
    with pytest.raises(errors.RequestTimedOut):
        await channel_over(pool, RaftService()).send(REGISTRATION)
    assert trio.current_time() == pytest.approx(SESSION_S)


PRODUCER_IDS = AllocateProducerIdsRequest(broker_id=1, broker_epoch=7)
CONTROLLER = ControllerRegistrationRequest(
    controller_id=1, incarnation_id=b"i" * 16, zk_migration_ready=False, listeners=[], features=[]
)


@pytest.mark.parametrize(
    ("request_", "purpose"),
    [
        (REGISTRATION, "registrations"),
        (CONTROLLER, "own_requests"),
        (HEARTBEAT, "own_requests"),
        (AssignReplicasToDirsRequest(broker_id=1), "own_requests"),
        (AlterPartitionRequest(broker_id=1), "isr_proposals"),
        (PRODUCER_IDS, "client_requests"),
        (CREATE, "client_requests"),
    ],
)
@pytest.mark.parametrize("answers", [True, False])
async def test_request_waits_only_behind_those_of_the_same_purpose(
    autojump_clock: trio.testing.MockClock, request_: Any, purpose: str, answers: bool
) -> None:
    """A late answer holds up nothing: only clients' requests stay on their connection."""
    answer: Any = (lambda: ALIVE) if answers else (lambda: None)
    names = ("registrations", "own_requests", "isr_proposals", "client_requests")
    pools: Any = {name: ConnectionPool({1: answer}, timeout_s=2.0) for name in names}
    channel = ControllerChannel(RaftService(), **pools)  # type: ignore[arg-type]
    if answers:
        await channel.send(request_)
    else:
        with pytest.raises(errors.RequestTimedOut):
            await channel.send(request_)
    sent = {name: pool.requests for name, pool in pools.items() if pool.requests}
    assert sent == {purpose: [(1, request_)]}
    is_dropped = not answers and purpose != "client_requests"
    assert pools[purpose].dropped == [1] * is_dropped


async def test_own_request_is_repeated_at_the_new_leader(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A refusal by a former leader ends its connection; the next leader gets the request."""
    refused = BrokerHeartbeatResponse(error_code=MOVED, is_fenced=True, should_shut_down=False)
    pool = ConnectionPool({1: lambda: refused, 2: lambda: ALIVE}, timeout_s=2.0)
    quorum = RaftService()
    channel = channel_over(pool, quorum)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, HEARTBEAT)
        await trio.sleep(0.02)
        announce(channel, quorum, 2)
    assert pool.requests == [(1, HEARTBEAT), (2, HEARTBEAT)]
    assert pool.dropped == [1]


async def test_attempt_at_a_node_goes_on_when_that_node_becomes_leader(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """If it got the request twice, it would answer that the topic already exists."""
    pool = ConnectionPool({2: lambda: ALIVE}, timeout_s=2.0)
    quorum = RaftService(Node(2, "h", 2))
    channel = channel_over(pool, quorum)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, HEARTBEAT)
        await trio.sleep(0.0005)
        announce(channel, quorum, 2)
    assert pool.requests == [(2, HEARTBEAT)]
    assert pool.dropped == []


async def test_connection_to_a_controller_that_hangs_is_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pool = ConnectionPool({1: lambda: None}, timeout_s=2.0)
    with pytest.raises(errors.RequestTimedOut):
        await channel_over(pool, RaftService()).send(HEARTBEAT)
    assert pool.dropped == [1]


def refuse() -> Any:
    raise ConnectionRefused("h")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((refuse, refuse, ApiVersionsResponse), True),
        ((refuse, refuse, time_out), True),
        ((refuse, time_out, time_out), False),  # silent hosts may come back
        ((refuse, lambda: None, refuse), True),  # paused
        ((refuse, ApiVersionsResponse, ApiVersionsResponse), False),
        ((refuse, refuse, refuse), True),
    ],
)
async def test_controllers_are_gone_when_a_majority_refuses_connections(
    autojump_clock: trio.testing.MockClock, answers: tuple[Callable[[], Any], ...], expected: bool
) -> None:
    pool = ConnectionPool(dict(enumerate(answers, 1)))
    quorum = RaftService(None)
    assert await channel_over(pool, quorum).is_gone() is expected
    assert trio.current_time() < 1


def describe(code: int) -> Callable[[], Any]:
    """Return a node that answers DescribeQuorum with this code."""
    topic = DescribeQuorumResponse.TopicData
    partition = topic.PartitionData(
        partition_index=0, error_code=code, leader_id=-1, leader_epoch=1, high_watermark=-1
    )
    return lambda: DescribeQuorumResponse(
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[partition])]
    )


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((refuse, refuse, refuse), True),
        ((refuse, refuse, describe(errors.NotLeaderOrFollower.code)), True),
        ((refuse, refuse, describe(errors.NONE)), False),  # it may get its followers back
        ((refuse, refuse, describe(errors.ClusterAuthorizationFailed.code)), False),
        ((refuse, refuse, lambda: DescribeQuorumResponse(error_code=31)), False),
        ((refuse, refuse, time_out), False),  # it may lead
        ((refuse, refuse, lambda: None), False),
        ((refuse, *[describe(errors.NotLeaderOrFollower.code)] * 2), False),
    ],
)
async def test_no_controller_is_active_if_too_few_run_and_none_of_them_leads(
    autojump_clock: trio.testing.MockClock, answers: tuple[Callable[[], Any], ...], expected: bool
) -> None:
    """Invariant 34: a leader that goes on with its sessions fences the brokers that serve on."""
    pool = ConnectionPool(dict(enumerate(answers, 1)))
    assert await channel_over(pool, RaftService(None)).has_no_active() is expected
    assert trio.current_time() < 1.5


async def test_brokers_learn_at_once_and_again_that_all_controllers_have_stopped(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Decision 21: they serve on, although each question is asked after refused connections.

    The clock stands still, so no question may wait, and a busy machine ends none.
    """
    connections = Network(SystemClock(), Random(1))
    voters = VoterSet.of(
        Voter(ReplicaKey(n), (VoterEndpoint("C", "127.0.0.1", unused_port()),)) for n in (1, 2, 3)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(connections.run)
        pool = connections.pool("test", 2.0)
        channel = ControllerChannel(
            RaftService(None, voters),  # type: ignore[arg-type]
            registrations=pool,
            own_requests=pool,
            isr_proposals=pool,
            client_requests=pool,
        )
        for _ in range(3):
            assert await channel.has_no_active()
        assert await channel.is_gone()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("later", [time_out, lambda: None])
async def test_controllers_that_refused_before_a_network_broke_are_not_gone(
    autojump_clock: trio.testing.MockClock, later: Callable[[], Any]
) -> None:
    """They may run again and elect one of them, which this side cannot see."""
    pool = ConnectionPool(dict.fromkeys((1, 2, 3), refuse))
    channel = channel_over(pool, RaftService(None))
    assert await channel.is_gone()
    pool.answers.update(dict.fromkeys((1, 2), later))
    assert not await channel.is_gone()


async def test_restarted_controllers_are_not_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pool = ConnectionPool(dict.fromkeys((1, 2, 3), refuse))
    channel = channel_over(pool, RaftService(None))
    assert await channel.is_gone()
    pool.answers.update(dict.fromkeys((1, 2), ApiVersionsResponse))
    assert not await channel.is_gone()


@pytest.mark.parametrize(
    "first",
    [
        time_out,
        lambda: None,  # hangs: stopped, but its connections are open
        lambda: EnvelopeResponse(error_code=MOVED),
    ],
)
async def test_forwarded_request_is_repeated_at_the_new_leader(
    autojump_clock: trio.testing.MockClock, first: Callable[[], Any]
) -> None:
    pool = ConnectionPool({1: first, 2: lambda: EnvelopeResponse(response_data=b"answer")})
    quorum = RaftService()
    channel = channel_over(pool, quorum)
    answers = []

    async def forward() -> None:
        answers.append(await channel.forward(b"frame", ALICE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(forward)
        await trio.sleep(0.02)
        announce(channel, quorum, 2)
    assert answers == [b"answer"]
    port, sent = pool.requests[-1]
    assert (port, type(sent)) == (2, EnvelopeRequest)
    assert (sent.request_data, sent.client_host_address) == (b"frame", bytes([10, 1, 2, 3]))
    assert trio.current_time() < 1


async def test_request_in_a_clients_name_is_sent_in_an_envelope(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Topics that are created on first use count for the client that led to it."""
    answer = CreateTopicsResponse(throttle_time_ms=7)
    data = b"".join(response_parts(19, 7, 0, answer))[4:]
    pool = ConnectionPool({1: lambda: EnvelopeResponse(response_data=data)})
    channel = channel_over(pool, RaftService())
    assert await channel.send(CreateTopicsRequest(timeout_ms=5), ALICE) == answer
    ((_, sent),) = pool.requests
    head, body = read_header(sent.request_data)
    assert (head.api_key, head.api_version, head.client_id) == (19, 7, "tool")
    assert read_request(head, sent.request_data, body).timeout_ms == 5
    assert b"alice" in sent.request_principal
    assert sent.client_host_address == bytes([10, 1, 2, 3])


async def test_unsupported_envelope_version_fails_the_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The client that asked for something else keeps its connection."""
    pool = ConnectionPool({1: lambda: EnvelopeResponse(error_code=errors.UnsupportedVersion.code)})
    with pytest.raises(errors.UnsupportedVersion):
        await channel_over(pool, RaftService()).send(CreateTopicsRequest(), ALICE)


async def test_forwarded_request_times_out(autojump_clock: trio.testing.MockClock) -> None:
    pool = ConnectionPool({1: time_out})
    with pytest.raises(errors.RequestTimedOut):
        await channel_over(pool, RaftService()).forward(b"frame", ALICE)
    assert len(pool.requests) > 100


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errors.UnsupportedVersion.code, Disconnect),
        (errors.ClusterAuthorizationFailed.code, errors.UnknownServerError),
        (errors.PrincipalDeserializationFailure.code, errors.UnknownServerError),
    ],
)
async def test_client_does_not_see_error_code_of_the_envelope(
    autojump_clock: trio.testing.MockClock, code: int, error: type[Exception]
) -> None:
    """The client asks for versions again; it does not see errors between nodes."""
    pool = ConnectionPool({1: lambda: EnvelopeResponse(error_code=code)})
    with pytest.raises(error):
        await channel_over(pool, RaftService()).forward(b"request", ALICE)


async def test_request_is_repeated_when_each_topic_has_not_controller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    topic = CreateTopicsResponse.CreatableTopicResult
    codes = iter([MOVED, errors.NONE])
    pool = ConnectionPool(
        {1: lambda: CreateTopicsResponse(topics=[topic(name="t", error_code=next(codes))])}
    )
    response = await channel_over(pool, RaftService()).send(CREATE)
    assert response.topics[0].error_code == errors.NONE
    assert len(pool.requests) == 2


def refuse_version() -> Any:
    raise errors.UnsupportedVersion("the other node supports 0 to -1")


async def test_missing_api_of_the_controller_raises_unsupported_version(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A controller of another version may lack an API; the broker goes on with the error."""
    pool = ConnectionPool({1: refuse_version}, timeout_s=2.0)
    with pytest.raises(errors.UnsupportedVersion):
        await channel_over(pool, RaftService()).send(HEARTBEAT)
    assert trio.current_time() < 2.0


async def test_controller_that_answers_unsupported_version_is_not_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A process that answers UnsupportedVersion is running."""
    pool = ConnectionPool(dict.fromkeys((1, 2, 3), refuse))
    channel = channel_over(pool, RaftService(None))
    assert await channel.is_gone()
    pool.answers.update(dict.fromkeys((1, 2, 3), refuse_version))
    assert not await channel.is_gone()
