"""Partitions with several replicas are refused where brokers do not copy them."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.configs.broker import BrokerConfig
from kwire.raftmeta.controller_features import REGISTERED, SUPPORTED
from kwire.raftmeta.controller_partitions import decide_reassign
from kwire.raftmeta.controller_topics import decide_create_partitions, decide_create_topics
from kwire.raftmeta.image import ONE_REPLICA
from kwire.raftmeta.internal_topics import creatable
from tests.raftmeta.clusters import Cluster, node_config, registration

REFUSED = errors.InvalidReplicationFactor.code


def cluster_of(*, kwire: tuple[int, ...] = (), apache: tuple[int, ...] = ()) -> Cluster:
    """Brokers as each of the two kinds registers."""
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


def test_brokers_say_that_they_do_not_replicate() -> None:
    assert REGISTERED.keys() - SUPPORTED.keys() == {ONE_REPLICA}


@pytest.mark.parametrize(
    "request_", [creation(num_partitions=1, replication_factor=3), manual(2, 1)]
)
def test_topic_with_several_replicas_is_refused_in_words(request_: CreateTopicsRequest) -> None:
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
    """Beside Apache Kafka's brokers, which do."""
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
    """One that another controller created."""
    cluster = cluster_of(kwire=(1, 2), apache=(3,))
    cluster.topic("t", replicas)
    asked = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[asked], timeout_ms=1000, validate_only=False)
    (result,) = cluster.do(decide_create_partitions, request).results
    assert result.error_code == REFUSED


@pytest.mark.parametrize(("replicas", "code"), [([1, 3], REFUSED), ([1], 0), ([3, 4], 0)])
def test_reassignment_to_several_replicas_is_refused(replicas: list[int], code: int) -> None:
    cluster = cluster_of(kwire=(1, 2), apache=(3, 4))
    cluster.topic("t", [3])
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    asked = topic.ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=[asked])])
    (answer,) = cluster.do(decide_reassign, request).responses[0].partitions
    assert answer.error_code == code


def test_default_settings_on_three_nodes_are_told_which_one_to_change() -> None:
    """Invariant 1, as far as one replica goes: a topic whose replicas get nothing is not made."""
    config: BrokerConfig = node_config(offsets_topic_replication_factor="3")
    cluster = cluster_of(kwire=(1, 2, 3))
    request = CreateTopicsRequest(topics=[creatable("__consumer_offsets", config)])
    (result,) = cluster.do(decide_create_topics, request).topics
    assert result.error_code == REFUSED
    assert "offsets.topic.replication.factor=1" in (result.error_message or "")
