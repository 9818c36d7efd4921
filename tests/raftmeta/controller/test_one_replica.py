"""Partitions with several replicas are refused where brokers do not copy them."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.configs.broker import BrokerConfig
from kwire.raftmeta.controller.features import REGISTERED, SUPPORTED
from kwire.raftmeta.controller.partitions import decide_reassign
from kwire.raftmeta.controller.topics import decide_create_partitions, decide_create_topics
from kwire.raftmeta.metadata.image import ONE_REPLICA
from kwire.raftmeta.metadata.internal_topics import creatable
from tests.support.raftmeta.clusters import Cluster, directory, node_config, registration

REFUSED = errors.InvalidReplicationFactor.code
NEVER_COPIED = errors.InvalidReplicaAssignment.code


def cluster_of(*, kwire: tuple[int, ...] = (), apache: tuple[int, ...] = ()) -> Cluster:
    """Return a cluster of brokers that registered as kwire's and Apache Kafka's do."""
    cluster = Cluster(())
    for broker in (*kwire, *apache):
        record: Any = registration(broker)
        if broker in kwire:
            feature = r.RegisterBrokerRecord.BrokerFeature
            record.features = [
                feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in REGISTERED.items()
            ]
        cluster.write(record)
    return cluster


def creation(name: str = "t", **fields: Any) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name=name, **fields)])


def manual(*replicas: int) -> CreateTopicsRequest:
    assignment = CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment
    return creation(
        num_partitions=-1,
        replication_factor=-1,
        assignments=[assignment(partition_index=0, broker_ids=list(replicas))],
    )


def test_brokers_register_the_one_replica_feature() -> None:
    assert REGISTERED.keys() - SUPPORTED.keys() == {ONE_REPLICA}


@pytest.mark.parametrize(
    "request_", [creation(num_partitions=1, replication_factor=3), manual(2, 1)]
)
def test_topic_with_several_replicas_is_refused_with_the_reason(
    request_: CreateTopicsRequest,
) -> None:
    cluster = cluster_of(kwire=(1, 2, 3))
    (result,) = cluster.do(decide_create_topics, request_).topics
    assert result.error_code == REFUSED
    assert "do not copy partitions from other brokers yet" in (result.error_message or "")
    assert not cluster.records


def test_topic_with_one_replica_is_created_anywhere() -> None:
    cluster = cluster_of(kwire=(1, 2), apache=(3,))
    request = creation(num_partitions=3, replication_factor=1)
    (result,) = cluster.do(decide_create_topics, request).topics
    assert result.error_code == 0
    assert {cluster.partition("t", n).leader for n in range(3)} == {1, 2, 3}


def test_replicas_go_to_the_brokers_that_copy_them() -> None:
    """Apache Kafka's brokers in the same cluster copy, kwire's do not yet."""
    cluster = cluster_of(kwire=(1, 2), apache=(3, 4))
    request = creation(num_partitions=4, replication_factor=2)
    (result,) = cluster.do(decide_create_topics, request).topics
    assert result.error_code == 0
    assert {tuple(sorted(cluster.partition("t", n).replicas)) for n in range(4)} == {(3, 4)}
    request = creation("u", num_partitions=1, replication_factor=3)
    (result,) = cluster.do(decide_create_topics, request).topics
    assert (result.error_code, "broker(s) 1, 2" in result.error_message) == (REFUSED, True)


@pytest.mark.parametrize("replicas", [[1, 2], [3, 1]])
def test_partitions_are_not_added_to_a_replicated_topic(replicas: list[int]) -> None:
    """Another controller created the topic."""
    cluster = cluster_of(kwire=(1, 2), apache=(3,))
    cluster.topic("t", replicas)
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    (result,) = cluster.do(decide_create_partitions, request).results
    assert result.error_code == REFUSED


def reassign(cluster: Cluster, replicas: list[int] | None) -> tuple[int, str | None]:
    """Reassign ``t-0``; return the error code and message of the response."""
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=[partition])])
    (answer,) = cluster.do(decide_reassign, request).responses[0].partitions
    return answer.error_code, answer.error_message


@pytest.mark.parametrize(
    ("replicas", "target", "code"),
    [
        ([3], [1, 3], REFUSED),
        ([3], [3, 4], 0),
        ([3], [4], 0),
        ([3], [1], NEVER_COPIED),
        ([1], [2], NEVER_COPIED),
        ([1], [3], NEVER_COPIED),
        ([1], [1], 0),
        ([1, 3], [1], 0),
        ([1, 3], [3], 0),
        ([1, 3], [3, 4], NEVER_COPIED),
        ([3, 1], [3, 4], 0),
    ],
)
def test_reassignment_that_would_never_complete_is_refused(
    replicas: list[int], target: list[int], code: int
) -> None:
    """A replica is copied by its own broker, and the leader reports that it is in sync."""
    cluster = cluster_of(kwire=(1, 2), apache=(3, 4))
    cluster.topic("t", replicas)
    before = cluster.partition("t")
    assert reassign(cluster, target)[0] == code
    assert (cluster.partition("t") == before) == (code != 0 or target == replicas)


def test_refused_reassignment_names_the_brokers_that_do_not_copy() -> None:
    cluster = cluster_of(kwire=(1, 2), apache=(3, 4))
    cluster.topic("t", [1])
    assert reassign(cluster, [2]) == (
        NEVER_COPIED,
        "kwire's broker(s) 1, 2 do not copy partitions from other brokers yet, so the partition "
        "cannot be moved.",
    )


def test_partition_without_leader_moves_only_if_it_can_get_one_that_is_copied_from() -> None:
    cluster = cluster_of(kwire=(1, 2), apache=(3, 4))
    place: dict[str, Any] = {"topic_id": cluster.topic("t", [1, 3]), "partition_id": 0}
    cluster.write(r.PartitionChangeRecord(**place, leader=-1, isr=[1]))
    assert reassign(cluster, [4, 3])[0] == NEVER_COPIED
    cluster.write(r.PartitionChangeRecord(**place, leader=-1, isr=[3]))
    assert reassign(cluster, [4, 3])[0] == 0


@pytest.mark.parametrize("way", [None, [3]])
def test_reassignment_begun_by_apache_kafka_can_be_cancelled(way: list[int] | None) -> None:
    """Apache Kafka's controllers don't know that kwire's brokers do not copy."""
    cluster = cluster_of(kwire=(1, 2), apache=(3, 4))
    begun = r.PartitionChangeRecord(
        topic_id=cluster.topic("t", [3]),
        partition_id=0,
        replicas=[1, 3],
        adding_replicas=[1],
        removing_replicas=[3],
        directories=[directory(1), directory(3)],
    )
    cluster.write(begun)
    assert reassign(cluster, [1])[0] == NEVER_COPIED
    assert reassign(cluster, way)[0] == 0
    after = cluster.partition("t")
    assert (after.replicas, after.adding, after.removing) == ((3,), (), ())


def test_internal_topic_error_names_the_setting_to_change() -> None:
    """Invariant 1, with one replica: a topic whose other replicas get no data is not created."""
    config: BrokerConfig = node_config(offsets_topic_replication_factor="3")
    cluster = cluster_of(kwire=(1, 2, 3))
    request = CreateTopicsRequest(topics=[creatable("__consumer_offsets", config)])
    (result,) = cluster.do(decide_create_topics, request).topics
    assert result.error_code == REFUSED
    assert "offsets.topic.replication.factor=1" in (result.error_message or "")
