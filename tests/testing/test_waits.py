"""Waits for what a test needs of a broker, and what their time-outs say."""

import threading
from collections.abc import Iterator

import pytest

from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.testing import Broker, BrokerError, Cluster, open_broker, waits
from kwire.testing.wire import WireClient
from tests.support.testing.clients import (
    GROUP,
    begin_transaction,
    commit,
    find_coordinator,
    produce,
)

NOW = 0.0
"""The time-out of a wait for what never comes."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    with broker.topic(2) as name:
        yield name


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(*broker.address) as client:
        yield client


def test_a_topic_that_comes_later_ends_the_wait(broker: Broker) -> None:
    create = threading.Timer(0.05, broker.create_topic, ("later", 3))
    create.start()
    broker.wait_topic("later", 3)
    create.join()


def test_a_missing_topic_is_reported_with_those_that_exist(broker: Broker, topic: str) -> None:
    with pytest.raises(BrokerError, match=f"waited 0 s for the topic nope; .*node 1 had .*{topic}"):
        broker.wait_topic("nope", timeout=NOW)
    with pytest.raises(BrokerError, match="with 3 partitions; in the end it had 2 partitions"):
        broker.wait_topic(topic, 3, timeout=NOW)


def test_a_group_is_waited_for_until_its_members_have_an_assignment(
    broker: Broker, client: WireClient
) -> None:
    broker.wait_group("members", 0)
    with pytest.raises(BrokerError, match="1 members; in the end no client had used any group"):
        broker.wait_group("members", timeout=NOW)
    find_coordinator(client, GROUP, "members")
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = JoinGroupRequest(
        group_id="members",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = client.call(request, 3)
    with pytest.raises(BrokerError, match="it was CompletingRebalance with 1: wire"):
        broker.wait_group("members", timeout=NOW)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=b"all"
    )
    client.call(
        SyncGroupRequest(
            group_id="members",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[assignment],
        ),
        3,
    )
    broker.wait_group("members")
    with pytest.raises(BrokerError, match="with 2 members; in the end it was Stable with 1"):
        broker.wait_group("members", 2, timeout=NOW)


def test_lag_is_what_a_group_has_not_committed(
    broker: Broker, client: WireClient, topic: str
) -> None:
    for _ in range(3):
        assert produce(client, topic) == 0
    commit(client, "readers", topic, 1)
    with pytest.raises(BrokerError, match=rf"behind in {topic}-0 by 2 \(at 1 of 3\)"):
        broker.wait_lag("readers", timeout=NOW)
    broker.wait_lag("readers", lag=2)
    commit(client, "readers", topic, 3)
    broker.wait_lag("readers")
    broker.wait_lag("readers", topic)
    with pytest.raises(BrokerError, match="it had committed nothing"):
        broker.wait_lag("others", timeout=NOW)
    with pytest.raises(BrokerError, match=rf"behind in {topic}-0 by 3 \(at 0 of 3\)"):
        broker.wait_lag("others", topic, timeout=NOW)


def test_the_end_of_a_transaction_is_waited_for(
    broker: Broker, client: WireClient, topic: str
) -> None:
    with pytest.raises(BrokerError, match="the end of the transaction of writer; in the end "):
        broker.wait_transaction_end("writer", timeout=NOW)
    end = begin_transaction(client, "writer", topic)
    with pytest.raises(BrokerError, match=f"it was Ongoing with {topic}"):
        broker.wait_transaction_end("writer", timeout=NOW)
    end(committed=True)
    assert broker.wait_transaction_end("writer") == "CompleteCommit"


def test_a_leader_is_waited_for(broker: Broker, topic: str) -> None:
    assert broker.wait_leader(topic, 1) == 1
    with pytest.raises(BrokerError, match=r"node 2 as leader of .*; in the end .* was node 1"):
        broker.wait_leader(topic, 1, node=2, timeout=NOW)
    with pytest.raises(BrokerError, match="the nodes' leader was none"):
        broker.wait_leader(topic, 7, timeout=NOW)


async def test_waits_serve_programs_on_trio() -> None:
    async with open_broker() as broker:
        await broker.create_topic("orders")
        assert await waits.wait_leader(broker, "orders") == 1


@pytest.mark.slow
def test_replicas_are_waited_for_through_the_loss_of_a_node() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("orders")
        leader = cluster.wait_leader("orders")
        cluster.wait_in_sync("orders")
        cluster.kill(leader)
        assert cluster.wait_leader("orders") != leader
        cluster.wait_in_sync("orders", count=2)
        with pytest.raises(BrokerError, match=r"in-sync replicas were \d, \d of 3"):
            cluster.wait_in_sync("orders", timeout=NOW)
        cluster.start(leader)
        cluster.wait_in_sync("orders", count=3)
