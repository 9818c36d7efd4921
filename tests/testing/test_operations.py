"""Changes that a test makes to its cluster: leaders, coordinators, rebalances."""

from collections.abc import Iterator

import pytest

from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.errors import RebalanceInProgress
from kwire.testing import Broker, BrokerError, Cluster
from kwire.testing.wire import WireClient
from tests.support.testing.clients import commit, heartbeat, join_group


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_leader_moves_to_the_node_that_the_test_names(cluster: Cluster) -> None:
    cluster.create_topic("orders")
    cluster.wait_in_sync("orders")
    for node in (1, 2, 3, 3):
        cluster.move_leader("orders", node)
        assert cluster.wait_leader("orders") == node
    with pytest.raises(BrokerError, match="node 9 is not an in-sync replica of orders-0: 1, 2, 3"):
        cluster.move_leader("orders", 9)
    with pytest.raises(BrokerError, match="there is no partition orders-7"):
        cluster.move_leader("orders", 1, 7)


@pytest.mark.slow
def test_a_coordinator_moves_to_the_node_that_the_test_names(cluster: Cluster) -> None:
    cluster.create_topic("payments")
    with pytest.raises(BrokerError, match="no client has needed it"):
        cluster.move_coordinator(1, transactional_id="calculator")
    with WireClient(*cluster.addresses[0]) as client:
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["readers"])
        while client.call(find, 4).coordinators[0].error_code:
            pass
        cluster.wait_in_sync("__consumer_offsets")
        for node in (3, 1):
            cluster.move_coordinator(node, group="readers")
            assert client.call(find, 4).coordinators[0].node_id == node
        commit(client, "readers", "payments", 0)
    with pytest.raises(BrokerError, match="either a group or a transactional id"):
        cluster.move_coordinator(1)


def test_a_group_rebalances_when_the_test_asks_for_it() -> None:
    with Broker() as broker, WireClient(*broker.address) as client:
        with pytest.raises(BrokerError, match="there is no group readers yet"):
            broker.rebalance("readers")
        member = join_group(client, "readers")
        assert heartbeat(client, "readers", member) == 0
        broker.rebalance("readers")
        assert heartbeat(client, "readers", member) == RebalanceInProgress.code
        with pytest.raises(BrokerError, match="there is no group others with members"):
            broker.rebalance("others")
