"""A decision changes nothing before it takes effect, so nothing is undone if it is not written."""

from copy import deepcopy
from typing import Any

import pytest

from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.raftmeta.controller.brokers import (
    decide_fence_stale,
    decide_heartbeat,
    decide_register_broker,
    decide_unregister_broker,
)
from kwire.raftmeta.controller.early_fencing import decide_fence_ended
from kwire.raftmeta.controller.leader_updates import decide_leader_updates
from kwire.raftmeta.controller.partitions import decide_elect_unclean
from kwire.raftmeta.controller.process_probe import EndedProcess
from kwire.raftmeta.controller.state import whole
from kwire.raftmeta.controller.topics import decide_create_topics
from tests.support.raftmeta.clusters import Cluster, directory
from tests.support.raftmeta.requests import beat, register

NEW_TOPIC = CreateTopicsRequest(
    topics=[CreateTopicsRequest.CreatableTopic(name="n", num_partitions=1, replication_factor=1)],
    timeout_ms=1000,
)
EXPIRED_S = 100.0


def cluster_of_slices() -> Cluster:
    """Return a cluster in which a decision about a broker leaves partitions to the queue."""
    cluster = Cluster()
    cluster.topic("t", *([[2, 1]] * 5))
    cluster.state.leader_update_queue.size = 2
    return cluster


def of_leader(cluster: Cluster) -> tuple[object, ...]:
    """Return a copy of what the active controller knows besides the records."""
    state = cluster.state
    pending = state.leader_update_queue.pending()
    return deepcopy(state.sessions), pending, state.placement, state.image


@pytest.mark.parametrize(
    ("decide", "arrival", "elapsed_s"),
    [
        (decide_heartbeat, beat(1, 100), 1.0),
        (decide_heartbeat, beat(2, 200, want_fence=True), 1.0),
        (decide_heartbeat, beat(2, 200, want_shut_down=True), 1.0),
        (decide_heartbeat, beat(2, 200, offline_log_dirs=[directory(2)]), 1.0),
        (decide_register_broker, register(4), 1.0),
        (decide_register_broker, register(2, log_dirs=[directory(2)]), 1.0),
        (decide_unregister_broker, UnregisterBrokerRequest(broker_id=3), 1.0),
        (decide_unregister_broker, UnregisterBrokerRequest(broker_id=2), 1.0),
        (decide_fence_ended, EndedProcess(3, 300, 1001.0), 1.0),
        (decide_fence_stale, None, EXPIRED_S),
        (decide_create_topics, NEW_TOPIC, 1.0),
    ],
)
def test_decision_changes_nothing_before_it_takes_effect(
    decide: Any, arrival: Any, elapsed_s: float
) -> None:
    cluster = cluster_of_slices()
    cluster.now += elapsed_s
    before = of_leader(cluster)
    decision: Any = whole(decide(cluster.state, arrival))
    assert of_leader(cluster) == before
    decision.take_effect()
    assert decision.again or of_leader(cluster) != before


def test_slice_of_leader_updates_stays_queued_until_it_takes_effect() -> None:
    cluster = cluster_of_slices()
    cluster.fence(2)
    before = of_leader(cluster)
    for _ in range(2):
        decision = whole(decide_leader_updates(cluster.state, None))
        assert of_leader(cluster) == before
        assert (len(decision.records), decision.reply) == (2, True)
    cluster.write(*decision.records)
    decision.take_effect()
    assert cluster.do(decide_leader_updates, None) is False
    assert not cluster.state.leader_update_queue


def test_early_end_of_a_session_stays_until_the_elections_after_it_take_effect() -> None:
    cluster = cluster_of_slices()
    cluster.now += 1.0
    cluster.do(decide_fence_ended, EndedProcess(2, 200, 1001.0))
    cluster.now += EXPIRED_S
    before = of_leader(cluster)
    decision = whole(decide_fence_stale(cluster.state, None))
    assert of_leader(cluster) == before
    decision.take_effect()
    assert not cluster.state.sessions.has_passed_early_ends(cluster.now)
    before = of_leader(cluster)
    whole(decide_elect_unclean(cluster.state, None))
    assert of_leader(cluster) == before
