"""Compare the requests of a kwire node's broker to controllers with those of Apache Kafka's.

Registrations, heartbeats, requests for producer ids and forwarded requests of clients are compared
to the byte, and the times at which they are sent.
Every frame of every recording is compared here, or in the replays of the quorum and of the
controller, or is in a table of frames that are not compared, with the reason.
"""

import ipaddress
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing

from kwire.configs.listeners import ListenerEndpoint
from kwire.net.controller_channel import ControllerChannel
from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.mutation_quota import Requester
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from simulation.raft.quorums import TestClock
from tests.support.codec.message_json import to_json
from tests.support.raftmeta.broker_replay import (
    COMPARED_APIS,
    DIFFERENCES,
    INTERVAL,
    NOT_CONTROLLER,
    ORDER,
    ChannelRun,
    Comparison,
    Exchange,
    config_of,
    exchanges,
    frame_of,
    in_turn,
    leaders,
    node_of,
    play_cluster,
    request_bytes,
    send_by_channel,
)
from tests.support.raftmeta.conversations import CLUSTERS, CONTROLLER, Frame, Happening, recording
from tests.support.raftmeta.deviations import Deviation

PAGE: Final = Path(__file__).parents[3] / "docs" / "quorum-differences.md"
REQUEST_TIMEOUT: Final = 30.0
NUMBERS: Final = [number for listed in CLUSTERS.values() for number in listed]


ELSEWHERE: Final = "compared where the quorum is"
DECIDED: Final = "compared where the controller is"
HERE: Final = "compared here"

REPLICATION: Final = (
    "Its times and sizes depend on the producers; "
    "`compat_tests/cluster/test_replication.py` compares the copies."
)
TRANSACTIONS: Final = "They depend on clients; `tests/transaction/` compares those conversations."
CLIENTS: Final = "Client requests are compared wherever they are served."
NOT_COMPARED: Final = {
    "Fetch between brokers": REPLICATION,
    "AlterPartition request": (
        "The moment at which a follower has caught up depends on the times of its fetches."
    ),
    "AssignReplicasToDirs request": (
        "kwire's controller names the directory of each replica; its brokers put it there."
    ),
    "AddPartitionsToTxn between brokers": TRANSACTIONS,
    "WriteTxnMarkers between brokers": TRANSACTIONS,
    "CreateTopics bare": "It created the topic of transactions.",
    "CreateTopics of a client": CLIENTS,
    "InitProducerId of a client": CLIENTS,
    "Produce of a client": CLIENTS,
    "EndTxn of a client": CLIENTS,
    "ApiVersions": (
        "Every connection to a controller begins with ApiVersions, in Kafka and in kwire. The "
        "request has the name of the software, the response has its features."
    ),
}
"""Frames that are not compared, with the reasons."""


# Requests, and when they are sent -----------------------------------------------------------
COUNTS: Final = {
    "first": {"BrokerRegistration": 7, "BrokerHeartbeat": 94, "BrokerHeartbeat again": 3},
    "second": {"BrokerRegistration": 1, "BrokerHeartbeat": 16, "BrokerHeartbeat again": 3},
    "third": {},
    "fourth": {
        "BrokerRegistration": 3,
        "BrokerRegistration again": 1,
        "BrokerHeartbeat": 26,
    },
}
TIMED: Final = {"first": 67, "second": 12, "third": 0, "fourth": 23}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_broker_sends_the_recorded_requests_in_time(cluster: str) -> None:
    comparison = play_cluster(cluster)
    wrong = [deviation for deviation in comparison.deviations if deviation.kind != ORDER]
    assert not wrong, wrong[0]
    assert comparison.compared == Counter({**COUNTS[cluster], "time": TIMED[cluster]})


def other_requests(number: str) -> Iterable[Frame]:
    apis = ("ControllerRegistration", "AllocateProducerIds")
    return (f for f in recording(number).frames if f.is_request and f.api in apis)


def ours(frame: Frame) -> Any:
    """Return what kwire's node sends in place of this frame, given the same facts."""
    body = frame.message()
    if frame.api == "AllocateProducerIds":
        lifecycle = BrokerLifecycle(
            config=config_of(node_of(frame.source)),
            cluster_id="",
            incarnation_id=bytes(16),
            endpoints=[],
            features={},
            log_dirs=[],
            publisher=MetadataPublisher(),
            ask=never,
            clock=TestClock(),
        )
        lifecycle.broker.epoch = body.broker_epoch
        return lifecycle.producer_ids()
    endpoints = [ListenerEndpoint(e.name, e.host, e.port, "PLAINTEXT") for e in body.listeners]
    config = config_of(node_of(frame.source))
    return controller_registration(config, body.incarnation_id, endpoints, SUPPORTED)


async def never(request: Any) -> Any:
    raise AssertionError("no node is asked")


@cache
def others() -> Comparison:
    """Registrations of controllers, and blocks of producer ids."""
    comparison = Comparison()
    for number in NUMBERS:
        for frame in other_requests(number):
            comparison.compare(number, frame, ours(frame))
    return comparison


def test_registrations_and_producer_id_requests_match_the_recording() -> None:
    comparison = others()
    wrong = [deviation for deviation in comparison.deviations if deviation.kind != ORDER]
    assert not wrong, wrong[0]
    assert comparison.compared == {"ControllerRegistration": 15, "AllocateProducerIds": 4}


# Receivers of requests, and repeats ---------------------------------------------------------
async def forward_client_request(channel: ControllerChannel, frame: Frame) -> Any:
    request = frame.message()
    host = str(ipaddress.ip_address(bytes(request.client_host_address)))
    return await channel.forward(
        bytes(request.request_data), Requester(("User", "ANONYMOUS"), "", host)
    )


async def ask_controller(channel: ControllerChannel, frame: Frame) -> Any:
    return await channel.send(frame.message())


async def replay_exchange(exchange: Exchange) -> ChannelRun:
    if exchange.api == "Envelope":
        return await send_by_channel(exchange, forward_client_request, REQUEST_TIMEOUT)
    return await send_by_channel(exchange, ask_controller, INTERVAL)


def stale_targets(exchange: Exchange) -> list[int]:
    """Return the nodes that Kafka's broker asked although it knew another leader."""
    leader_times = list(leaders(exchange.number, exchange.source))
    expected = []
    for frame in exchange.requests:
        earlier = [leader for t, leader in leader_times if t <= frame.t]
        if earlier and node_of(frame.target) != earlier[-1]:
            expected.append(node_of(frame.target))
    return in_turn(expected)


@pytest.mark.parametrize("number", NUMBERS)
async def test_requests_and_retries_go_to_the_recorded_controllers(
    number: str, autojump_clock: trio.testing.MockClock
) -> None:
    for exchange in exchanges(number):
        run = await replay_exchange(exchange)
        recorded = in_turn(node_of(frame.target) for frame in exchange.requests)
        late = stale_targets(exchange)
        assert run.controllers == [node for node in recorded if node not in late], exchange
        first = exchange.frames[0]
        for _, _, request in run.peers.calls:
            assert frame_of(request, first, first.source) == bytes_of(exchange, request)
        check_outcome(exchange, run)
        check_pauses(exchange, run)


def bytes_of(exchange: Exchange, request: Any) -> bytes:
    """Return the recorded bytes, or new ones if it has features: their order may differ."""
    first = exchange.frames[0]
    if "features" in first.body:
        return frame_of(first.message(), first, first.source)
    return request_bytes(exchange.number)[first.key]


def check_outcome(exchange: Exchange, run: ChannelRun) -> None:
    """Check that the last answer is returned in time; without one the connection is closed."""
    last = exchange.frames[-1]
    if exchange.is_answered:
        assert run.ended <= last.t + 1
        answer = last.message()
        if exchange.api == "Envelope":
            assert run.answer == answer.response_data
        else:
            assert to_json(run.answer, last.version) == last.body
        return
    assert run.timed_out
    (closed,) = [
        entry.t
        for entry in recording(exchange.number).entries
        if isinstance(entry, Happening) and entry.text == "close" and entry.conn == last.conn
    ]
    assert run.ended == pytest.approx(closed, abs=10)
    dropped_at, dropped = run.peers.dropped[-1]
    assert dropped_at == pytest.approx(closed, abs=10)
    assert dropped == node_of(last.target)


def check_pauses(exchange: Exchange, run: ChannelRun) -> None:
    """Check that a refused request is retried on a new connection, a little sooner than Kafka's."""
    refused = [
        f for f in exchange.frames if not f.is_request and f.body["errorCode"] == NOT_CONTROLLER
    ]
    times = [t for t, _, _ in run.peers.calls]
    for (ended, _), again in zip(run.peers.dropped, times[1:], strict=False):
        assert again - ended <= 51
    for answer in refused:
        later = [f for f in exchange.requests if f.t > answer.t and f.target == answer.source]
        assert not later or later[0].t - answer.t > 60


def test_envelope_contains_the_clients_frame_unchanged() -> None:
    """The client's own frame is compared wherever it was recorded as well."""
    count = 0
    for number in NUMBERS:
        inner = {
            frame.message().request_data: frame.source
            for frame in recording(number).frames
            if frame.api == "Envelope" and frame.is_request
        }
        for frame in recording(number).frames:
            if frame.api == "CreateTopics" and frame.is_request and frame.source == "client":
                assert inner[request_bytes(number)[frame.key][4:]] == frame.target.replace(
                    "broker-2", "controller-2"
                )
                count += 1
    assert count == 4


# All frames ---------------------------------------------------------------------------------
def kind_of(frame: Frame) -> str:
    """Return where a frame is compared, or its row in the table."""
    if frame.is_raft:
        return ELSEWHERE
    if frame.api in CONTROLLER and not frame.is_request:
        return DECIDED
    if frame.api in COMPARED_APIS:
        return HERE
    if frame.api == "ApiVersions":
        return frame.api
    ends = {frame.source, frame.target}
    if "client" in ends:
        return f"{frame.api} of a client"
    if frame.api in ("AlterPartition", "AssignReplicasToDirs"):
        return f"{frame.api} request"
    return f"{frame.api} bare" if frame.api == "CreateTopics" else f"{frame.api} between brokers"


def test_every_frame_is_compared_or_listed() -> None:
    frames = [frame for number in NUMBERS for frame in recording(number).frames]
    kinds = Counter(kind_of(frame) for frame in frames)
    assert set(kinds) == {ELSEWHERE, DECIDED, HERE, *NOT_COMPARED}
    requests = Counter(f.api for f in frames if f.is_request and f.api in COMPARED_APIS)
    compared = others().compared.copy()
    for cluster in CLUSTERS:
        for api, count in play_cluster(cluster).compared.items():
            compared[api.split()[0]] += count
    del compared["time"]
    compared["Envelope"] = sum(
        len(exchange.requests)
        for number in NUMBERS
        for exchange in exchanges(number)
        if exchange.api == "Envelope"
    )
    assert compared == requests
    envelopes = sum(f.api == "Envelope" for f in frames)
    assert kinds[HERE] == sum(requests.values()) + envelopes - requests["Envelope"]


# The page -----------------------------------------------------------------------------------
def test_every_difference_occurs_and_is_documented() -> None:
    everything: list[Deviation] = list(others().deviations)
    for cluster in CLUSTERS:
        everything += play_cluster(cluster).deviations
    assert any(deviation.kind == ORDER for deviation in everything)
    all_exchanges = [exchange for number in NUMBERS for exchange in exchanges(number)]
    assert any(stale_targets(exchange) for exchange in all_exchanges)
    assert any(
        len(exchange.requests) > 1 and not stale_targets(exchange) for exchange in all_exchanges
    )
    page = " ".join(PAGE.read_text().split())
    assert [line for line in DIFFERENCES if line not in page] == []
    rows = [f"| {name} | {reason} |" for name, reason in NOT_COMPARED.items()]
    assert [row for row in rows if row not in page] == []
