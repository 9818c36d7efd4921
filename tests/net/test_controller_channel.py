"""The way to the active controller: through failovers, once, until it takes too long."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.frame import read_header, read_request, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kwire.codec.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.net.connection_pool import NobodyListens, OutOfReach
from kwire.net.controller_channel import ControllerChannel
from kwire.net.framing import Disconnect
from kwire.raftmeta.controller.mutation_quota import Requester
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.raft.voters import Endpoint, Node, ReplicaKey, Voter, VoterSet

HEARTBEAT = BrokerHeartbeatRequest(
    broker_id=1, broker_epoch=7, current_metadata_offset=9, want_fence=False, want_shut_down=False
)
ALIVE = BrokerHeartbeatResponse(is_fenced=False, should_shut_down=False)
FIRST = Node(1, "h", 1)
CREATE = CreateTopicsRequest(topics=[], timeout_ms=1000)
MOVED = errors.NotController.code


@attrs.define
class RaftService:
    leader: Node | None = FIRST
    voters: VoterSet = attrs.field(
        factory=lambda: VoterSet.of(
            Voter(ReplicaKey(port), (Endpoint("C", "h", port),)) for port in (1, 2, 3)
        )
    )

    @property
    def voter_nodes(self) -> tuple[Node, ...]:
        return self.voters.nodes()

    def leader_node(self) -> Node | None:
        return self.leader

    def add_listener(self, listener: Any) -> None:
        pass


@attrs.define
class ConnectionPool:
    """Nodes by port: what each answers, or how it fails."""

    answers: dict[int, Callable[[], Any]]
    timeout_s: float = 30.0
    asked: list[tuple[int, Any]] = attrs.field(factory=list)
    dropped: list[int] = attrs.field(factory=list)

    async def call(self, host: str, port: int, request: Any) -> Any:
        self.asked.append((port, request))
        await trio.sleep(0.001)
        answer = self.answers[port]()
        if answer is None:
            await trio.sleep_forever()
        return answer

    def drop(self, host: str, port: int) -> None:
        self.dropped.append(port)


def dead() -> Any:
    raise OutOfReach("h")


def channel(links: ConnectionPool, quorum: RaftService) -> ControllerChannel:
    return ControllerChannel(quorum, links, links)  # type: ignore[arg-type]


def announce(made: ControllerChannel, quorum: RaftService, leader: int) -> None:
    quorum.leader = Node(leader, "h", leader)
    made.on_leadership(LeaderAndEpoch(leader, leader))


async def test_ask_goes_to_the_leader(autojump_clock: trio.testing.MockClock) -> None:
    links = ConnectionPool({1: lambda: ALIVE})
    assert not (await channel(links, RaftService()).ask(HEARTBEAT)).is_fenced
    assert links.asked == [(1, HEARTBEAT)]


@pytest.mark.parametrize("leader", [FIRST, None])
async def test_ask_ends_with_the_heartbeat_interval(
    autojump_clock: trio.testing.MockClock, leader: Node | None
) -> None:
    links = ConnectionPool({1: dead}, timeout_s=2.0)
    with pytest.raises(errors.RequestTimedOut):
        await channel(links, RaftService(leader)).ask(HEARTBEAT)
    assert trio.current_time() == pytest.approx(2.0)


async def test_ask_follows_the_leader_with_the_same_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A refusal by a former leader ends its connection; the next leader gets the request."""
    refused = BrokerHeartbeatResponse(error_code=MOVED, is_fenced=True, should_shut_down=False)
    links = ConnectionPool({1: lambda: refused, 2: lambda: ALIVE}, timeout_s=2.0)
    quorum = RaftService()
    made = channel(links, quorum)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.ask, HEARTBEAT)
        await trio.sleep(0.02)
        announce(made, quorum, 2)
    assert links.asked == [(1, HEARTBEAT), (2, HEARTBEAT)]
    assert links.dropped == [1]


async def test_who_was_asked_already_is_heard_out_when_it_is_announced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """If it got the request twice, it would answer that the topic exists already."""
    links = ConnectionPool({2: lambda: ALIVE}, timeout_s=2.0)
    quorum = RaftService(Node(2, "h", 2))
    made = channel(links, quorum)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.ask, HEARTBEAT)
        await trio.sleep(0.0005)
        announce(made, quorum, 2)
    assert links.asked == [(2, HEARTBEAT)]
    assert links.dropped == []


async def test_a_controller_that_hangs_loses_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    links = ConnectionPool({1: lambda: None}, timeout_s=2.0)
    with pytest.raises(errors.RequestTimedOut):
        await channel(links, RaftService()).ask(HEARTBEAT)
    assert links.dropped == [1]


def nobody() -> Any:
    raise NobodyListens("h")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((nobody, nobody, ApiVersionsResponse), True),
        ((nobody, nobody, dead), True),
        ((nobody, dead, dead), False),  # silent hosts may come back
        ((nobody, lambda: None, nobody), True),  # paused
        ((nobody, ApiVersionsResponse, ApiVersionsResponse), False),
        ((nobody, nobody, nobody), True),
    ],
)
async def test_whether_anybody_could_be_the_controller(
    autojump_clock: trio.testing.MockClock, answers: tuple[Callable[[], Any], ...], expected: bool
) -> None:
    links = ConnectionPool(dict(enumerate(answers, 1)))
    quorum = RaftService(None)
    assert await channel(links, quorum).is_gone() is expected
    assert trio.current_time() < 1


async def test_a_process_that_is_back_counts_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    links = ConnectionPool(dict.fromkeys((1, 2, 3), nobody))
    made = channel(links, RaftService(None))
    assert await made.is_gone()
    links.answers.update(dict.fromkeys((1, 2), ApiVersionsResponse))
    assert not await made.is_gone()


@pytest.mark.parametrize(
    "first",
    [
        dead,
        lambda: None,  # hangs: stopped, but its connections are open
        lambda: EnvelopeResponse(error_code=MOVED),
    ],
)
async def test_forward_follows_the_leader(
    autojump_clock: trio.testing.MockClock, first: Callable[[], Any]
) -> None:
    links = ConnectionPool({1: first, 2: lambda: EnvelopeResponse(response_data=b"answer")})
    quorum = RaftService()
    made = channel(links, quorum)
    answers = []

    async def forward() -> None:
        answers.append(await made.forward(b"frame", ("User", "alice"), "10.1.2.3"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(forward)
        await trio.sleep(0.02)
        announce(made, quorum, 2)
    assert answers == [b"answer"]
    port, sent = links.asked[-1]
    assert (port, type(sent)) == (2, EnvelopeRequest)
    assert (sent.request_data, sent.client_host_address) == (b"frame", bytes([10, 1, 2, 3]))
    assert trio.current_time() < 1


async def test_request_in_a_clients_name_goes_in_an_envelope(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Topics that are created on first use count for the client that led to it."""
    answer = CreateTopicsResponse(throttle_time_ms=7)
    data = b"".join(response_parts(19, 7, 0, answer))[4:]
    links = ConnectionPool({1: lambda: EnvelopeResponse(response_data=data)})
    requester = Requester(("User", "alice"), "tool", "10.1.2.3")
    made = channel(links, RaftService())
    assert await made.insist_for(CreateTopicsRequest(timeout_ms=5), requester) == answer
    ((_, sent),) = links.asked
    head, body = read_header(sent.request_data)
    assert (head.api_key, head.api_version, head.client_id) == (19, 7, "tool")
    assert read_request(head, sent.request_data, body).timeout_ms == 5
    assert b"alice" in sent.request_principal
    assert sent.client_host_address == bytes([10, 1, 2, 3])


async def test_controller_that_takes_no_envelope_of_this_version_creates_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The client that asked for something else keeps its connection."""
    links = ConnectionPool({1: lambda: EnvelopeResponse(error_code=errors.UnsupportedVersion.code)})
    requester = Requester(("User", "alice"), "tool")
    with pytest.raises(errors.UnsupportedVersion):
        await channel(links, RaftService()).insist_for(CreateTopicsRequest(), requester)


async def test_forward_ends_some_time(autojump_clock: trio.testing.MockClock) -> None:
    links = ConnectionPool({1: dead})
    with pytest.raises(errors.RequestTimedOut):
        await channel(links, RaftService()).forward(b"frame", ("User", "alice"), "::1")
    assert len(links.asked) > 100


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errors.UnsupportedVersion.code, Disconnect),
        (errors.ClusterAuthorizationFailed.code, errors.UnknownServerError),
        (errors.PrincipalDeserializationFailure.code, errors.UnknownServerError),
    ],
)
async def test_a_refusal_of_the_envelope(
    autojump_clock: trio.testing.MockClock, code: int, told: type[Exception]
) -> None:
    """The client asks for versions again; it does not see errors between nodes."""
    links = ConnectionPool({1: lambda: EnvelopeResponse(error_code=code)})
    with pytest.raises(told):
        await channel(links, RaftService()).forward(b"request", ("User", "alice"), "10.1.2.3")


async def test_topics_are_asked_for_again_when_refused_one_by_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    topic = CreateTopicsResponse.CreatableTopicResult
    codes = iter([MOVED, errors.NONE])
    links = ConnectionPool(
        {1: lambda: CreateTopicsResponse(topics=[topic(name="t", error_code=next(codes))])}
    )
    response = await channel(links, RaftService()).insist(CREATE)
    assert response.topics[0].error_code == errors.NONE
    assert len(links.asked) == 2


def lacks_the_api() -> Any:
    raise errors.UnsupportedVersion("the other node speaks 0 to -1")


async def test_controller_without_the_api_is_an_error_of_the_protocol(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A controller of another version lacks what is asked: the broker tries on, it does not end."""
    links = ConnectionPool({1: lacks_the_api}, timeout_s=2.0)
    with pytest.raises(errors.UnsupportedVersion):
        await channel(links, RaftService()).ask(HEARTBEAT)
    assert trio.current_time() < 2.0


async def test_controller_that_lacks_an_api_runs_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The process is running, whatever it answers."""
    links = ConnectionPool(dict.fromkeys((1, 2, 3), nobody))
    made = channel(links, RaftService(None))
    assert await made.is_gone()
    links.answers.update(dict.fromkeys((1, 2, 3), lacks_the_api))
    assert not await made.is_gone()
