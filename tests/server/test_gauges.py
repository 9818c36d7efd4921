"""Metrics of ``--metrics-port`` about a node's controller and its part in the quorum."""

from pathlib import Path

import attrs
import pytest
from trio.testing import MockClock

from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from kwire.metrics import RAFT_ELECTIONS, Metrics
from kwire.node.gauges import Elections, add_gauges
from kwire.node.supervisor_link import collect_figures
from kwire.raftmeta.controller.brokers import decide_register_broker
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.testing.wire import TrioWireClient
from simulation.raft.quorums import TestClock
from tests.support.raftmeta.requests import register
from tests.support.server.nodes import create, running


def values(metrics: Metrics) -> dict[str, float]:
    lines = (line for line in metrics.lines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.mark.slow
async def test_controller_shows_gauges_of_cluster_and_quorum(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        add_gauges(server.core, server.broker)
        assert await create(server, "t", 3) == 0
        shown = values(server.services.metrics)
        quorum = server.core.quorum
        controller = "kafka_controller_kafkacontroller_"
        expected = {
            f"{controller}activecontrollercount": 1,
            f"{controller}activebrokercount": 1,
            f"{controller}fencedbrokercount": 0,
            f"{controller}globaltopiccount": 1,
            f"{controller}globalpartitioncount": 3,
            f"{controller}offlinepartitionscount": 0,
            f"{controller}preferredreplicaimbalancecount": 0,
            f"{controller}lastcommittedrecordoffset": quorum.high_watermark - 1,
            "kafka_server_broker_metadata_metrics_last_applied_record_offset": quorum.next_offset
            - 1,
            'kafka_server_raft_metrics_current_state{state="leader"}': 1,
            'kafka_server_raft_metrics_current_state{state="follower"}': 0,
            "kafka_server_raft_metrics_current_leader": 1,
            "kafka_server_raft_metrics_current_vote": 1,
            "kafka_server_raft_metrics_current_epoch": 1,
            "kafka_server_raft_metrics_high_watermark": quorum.next_offset,
            "kafka_server_raft_metrics_log_end_offset": quorum.next_offset,
            "kafka_server_raft_metrics_log_end_epoch": 1,
            "kafka_server_raft_metrics_number_of_voters": 1,
            "kafka_server_raft_metrics_number_of_observers": 0,
            "kafka_server_raft_metrics_uncommitted_voter_change": 0,
        }
        assert {name: shown.get(name) for name in expected} == expected


async def test_election_latency_lasts_from_the_loss_of_a_leader_to_the_next(
    mock_clock: MockClock,
) -> None:
    metrics = Metrics()
    elections = Elections(TestClock(), metrics.histogram(RAFT_ELECTIONS))
    elections.on_leadership(LeaderAndEpoch(1, 1))
    mock_clock.jump(10)
    elections.on_leadership(LeaderAndEpoch(None, 1))
    mock_clock.jump(1)
    elections.on_leadership(LeaderAndEpoch(None, 2))
    mock_clock.jump(2)
    elections.on_leadership(LeaderAndEpoch(3, 2))
    elections.on_leadership(LeaderAndEpoch(3, 2, is_active=True))
    name = "kafka_server_raft_metrics_election_latency_seconds"
    shown = values(metrics)
    assert (shown[f"{name}_sum"], shown[f"{name}_count"]) == (3, 1)


@pytest.mark.slow
async def test_replica_that_a_reassignment_adds_does_not_count_as_missing(tmp_path: Path) -> None:
    """An in-sync replica is missing if there are fewer than before the move, as in Kafka."""
    async with running(tmp_path) as server:
        add_gauges(server.core, server.broker)
        assert await create(server, "t", 2) == 0
        cluster_id = server.core.identity.cluster_id
        await server.core.controller.call(
            decide_register_broker, register(2, cluster_id=cluster_id)
        )
        partition = AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic(
            name="t", partitions=[partition(partition_index=0, replicas=[1, 2])]
        )
        request = AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=[topic])
        async with await TrioWireClient.connect(*server.address) as client:
            answer = await client.call(request, 0)
        assert answer.responses[0].partitions[0].error_code == 0
        state = server.core.publisher.image.partition("t", 0)
        assert state is not None
        assert (state.replicas, state.adding, state.isr) == ((1, 2), (2,), (1,))
        shown = values(server.services.metrics)
        assert shown["kafka_server_replicamanager_underreplicatedpartitions"] == 0
        assert (await collect_figures(server))["under_replicated"] == 0
        assert not state.is_under_replicated
        assert attrs.evolve(state, adding=()).is_under_replicated
