"""A leader whose process is stopped for longer than its session, and then goes on (invariant 34).

What clients sent meanwhile lies in its sockets. When it goes on it reads them at once, before it
can learn that another broker leads.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.cluster.topics import create, describe, describe_at, producer, wait_isr
from compat_tests.harness.wait import eventually
from kwire.codec.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kwire.codec.messages.produce import ProduceRequest, ProduceResponse
from kwire.codec.schema import Request
from kwire.errors import NotCoordinator, NotLeaderOrFollower
from kwire.records import build
from kwire.testing.wire import WireClient

REFUSED = NotLeaderOrFollower.code
SETTINGS = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "broker_session_timeout_ms": "6000",
    "broker_heartbeat_interval_ms": "500",
    "auto_leader_rebalance_enable": "false",
    "offsets_topic_replication_factor": "3",
}
REQUESTS = 5
"""Requests of each kind, all of which the node reads in its first moments."""
PartitionResponse = ProduceResponse | FetchResponse | ListOffsetsResponse


@pytest.fixture
def cluster(make: Callable[..., Cluster], broker_kind: str) -> Cluster:
    if broker_kind != "kwire":
        pytest.skip("a paused leader of Apache Kafka acknowledges and serves when it goes on")
    cluster = make(3, **SETTINGS)
    cluster.start()
    return cluster


def produce_request(index: int) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    batch = build.batch([build.New(None, b"1000")], timestamp_ms=int(time.time() * 1000))
    part = topic.PartitionProduceData(index=index, records=batch)
    return ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[topic(name="t", partition_data=[part])]
    )


def fetch_request(index: int) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    part = topic.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic(topic="t", partitions=[part])])


def latest_request(index: int) -> ListOffsetsRequest:
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = topic.ListOffsetsPartition(partition_index=index, timestamp=-1)
    return ListOffsetsRequest(replica_id=-1, topics=[topic(name="t", partitions=[part])])


def error_code(response: PartitionResponse) -> int:
    """Return the error code of a response's only partition."""
    match response:
        case ProduceResponse():
            return response.responses[0].partition_responses[0].error_code
        case FetchResponse():
            return response.responses[0].partitions[0].error_code
        case ListOffsetsResponse():
            return response.topics[0].partitions[0].error_code


def leader_at(node: Node, index: int) -> int:
    """Return the leader of a partition in the metadata of one node."""
    leader: int = describe_at(node, "t", index).leader_id
    return leader


@pytest.mark.parametrize("is_controller", [False, True], ids=["broker", "active controller"])
def test_leader_that_was_paused_past_its_session_neither_acknowledges_nor_serves(
    cluster: Cluster, is_controller: bool
) -> None:
    create(cluster, "t", partitions=3)
    active = cluster.active()
    paused = active if is_controller else next(n for n in cluster.brokers if n is not active)
    partitions = [describe(cluster, "t", index) for index in range(3)]
    index = next(p.partition_index for p in partitions if p.leader_id == paused.id)
    client = producer(cluster)
    client.produce("t", b"1", partition=index)
    assert client.flush(60) == 0
    assert paused.process is not None
    other = next(node for node in cluster.brokers if node is not paused)
    connections = [WireClient("127.0.0.1", paused.port, timeout_s=60) for _ in range(3)]
    kinds: tuple[tuple[Callable[[int], Request[PartitionResponse]], int], ...] = (
        (produce_request, 9),
        (fetch_request, 12),
        (latest_request, 7),
    )
    for connection, (make_request, version) in zip(connections, kinds, strict=True):
        assert error_code(connection.call(make_request(index), version)) == 0
    os.kill(paused.process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: leader_at(other, index) not in (-1, paused.id), "another leader")
        successor = cluster.nodes[leader_at(other, index)]
        with successor.client() as direct:  # It may learn of its leadership after the other node.
            eventually(lambda: error_code(direct.call(produce_request(index), 9)) == 0, "a record")
        for connection, (make_request, version) in zip(connections, kinds, strict=True):
            for _ in range(REQUESTS):
                connection.send(make_request(index), version)
    finally:
        os.kill(paused.process.pid, signal.SIGCONT)
    codes = [[error_code(c.receive()[1]) for _ in range(REQUESTS)] for c in connections]
    for connection in connections:
        connection.close()
    assert codes == [[REFUSED] * REQUESTS] * 3, f"produce, fetch, latest: {paused.read_log()}"
    wait_isr(cluster, "t", {1, 2, 3})


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    part = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    return OffsetCommitRequest(
        group_id=group, member_id="", topics=[topic(name="t", partitions=[part])]
    )


def offset_fetch_request(group: str) -> OffsetFetchRequest:
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = shape.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    return OffsetFetchRequest(groups=[shape(group_id=group, topics=[topic])])


def coordinator_at(node: Node, group: str) -> int:
    """Return the coordinator of a group in the metadata of one node; -1 while it has none."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    with node.client() as client:
        (answer,) = client.call(request, 4).coordinators
    coordinator: int = answer.node_id
    return coordinator


def commit(node: Node, group: str, offset: int) -> bool:
    """Commit an offset; return whether the node's coordinator took it."""
    with node.client() as client:
        (topic,) = client.call(commit_request(group, offset), 8).topics
    return bool(topic.partitions[0].error_code == 0)


@pytest.mark.parametrize(
    "is_controller",
    [pytest.param(False, marks=pytest.mark.long), True],
    ids=["broker", "active controller"],
)
def test_group_coordinator_that_was_paused_past_its_session_answers_no_request(
    cluster: Cluster, is_controller: bool
) -> None:
    """Invariants 34 and 72: its offsets are older than those that its successor acknowledged."""
    create(cluster, "t")
    active = cluster.active()
    paused = active if is_controller else next(n for n in cluster.brokers if n is not active)
    other = next(node for node in cluster.brokers if node is not paused)
    groups = [f"g{number}" for number in range(20)]
    eventually(lambda: all(coordinator_at(other, g) > 0 for g in groups), "coordinators")
    group = next(g for g in groups if coordinator_at(other, g) == paused.id)
    eventually(lambda: commit(paused, group, 1), "a commit")
    assert paused.process is not None
    connections = [WireClient("127.0.0.1", paused.port, timeout_s=60) for _ in range(2)]
    requests: tuple[tuple[Request[OffsetFetchResponse | DescribeGroupsResponse], int], ...] = (
        (offset_fetch_request(group), 8),
        (DescribeGroupsRequest(groups=[group]), 5),
    )
    for connection, (request, version) in zip(connections, requests, strict=True):
        assert connection.call(request, version).groups[0].error_code == 0
    os.kill(paused.process.pid, signal.SIGSTOP)
    try:
        eventually(
            lambda: coordinator_at(other, group) not in (-1, paused.id), "another coordinator"
        )
        successor = cluster.nodes[coordinator_at(other, group)]
        eventually(lambda: commit(successor, group, 2), "a commit there")
        for connection, (request, version) in zip(connections, requests, strict=True):
            for _ in range(REQUESTS):
                connection.send(request, version)
    finally:
        os.kill(paused.process.pid, signal.SIGCONT)
    codes = [
        [connection.receive()[1].groups[0].error_code for _ in range(REQUESTS)]
        for connection in connections
    ]
    for connection in connections:
        connection.close()
    assert codes == [[NotCoordinator.code] * REQUESTS] * 2, paused.read_log()
