"""Rules of the controller for clusters under change: restarts, old levels, odd requests."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.raftmeta.controller.brokers import decide_heartbeat
from kwire.raftmeta.controller.feature_updates import decide_update_features
from kwire.raftmeta.controller.partitions import (
    decide_alter_partition,
    decide_elect_leaders,
    decide_reassign,
)
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.storage_format.format import feature_records
from tests.support.raftmeta.clusters import Cluster
from tests.support.raftmeta.requests import beat


def creation(name: str, replicas: int) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=4, replication_factor=replicas)]
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_topics_are_created_during_a_rolling_restart(replicas: int) -> None:
    """Invariant 108: a broker in controlled shutdown leads nothing new and is in no new ISR."""
    cluster = Cluster()
    cluster.topic("old", [2, 1], [2, 3])
    cluster.do(decide_heartbeat, beat(2, 200, want_shut_down=True))
    assert cluster.state.image.brokers[2].in_controlled_shutdown
    for turn in range(3):
        (result,) = cluster.do(decide_create_topics, creation(f"t{turn}", replicas)).topics
        assert result.error_code == 0, result
        for number in range(4):
            partition = cluster.partition(f"t{turn}", number)
            assert partition.leader in (1, 3)
            assert 2 not in partition.isr
            assert 2 not in partition.replicas[:2]


def test_topic_creation_fails_while_all_brokers_shut_down() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("old", [2, 1], [1, 2])
    for broker in (1, 2):
        cluster.do(decide_heartbeat, beat(broker, broker * 100, want_shut_down=True))
    (result,) = cluster.do(decide_create_topics, creation("t", 1)).topics
    assert result.error_code == errors.InvalidReplicationFactor.code
    assert result.error_message.endswith("fenced or in controlled shutdown.")


def shrink(cluster: Cluster, *times: list[int]) -> AlterPartitionRequest:
    """Return the request in which the leader, broker 1, sends its ISR once for each list."""
    topic_id = cluster.state.image.topic_ids["t"]
    data = AlterPartitionRequest.TopicData.PartitionData
    parts = [
        data(
            partition_index=0,
            leader_epoch=0,
            partition_epoch=0,
            new_isr_with_epochs=[
                data.BrokerState(broker_id=b, broker_epoch=b * 100) for b in members
            ],
        )
        for members in times
    ]
    topic = AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=parts)
    return AlterPartitionRequest(broker_id=1, broker_epoch=100, topics=[topic])


@pytest.mark.parametrize(("level", "leader_epoch"), [(11, 1), (12, 0), (30, 0)])
def test_leader_epoch_begins_with_a_smaller_isr_below_3_6(level: int, leader_epoch: int) -> None:
    """Brokers of those levels would not notice it otherwise (KAFKA-15021)."""
    cluster = Cluster()
    cluster.write(*feature_records({"metadata.version": level}))
    cluster.topic("t", [1, 2, 3])
    (topic,) = cluster.do(decide_alter_partition, shrink(cluster, [1, 2])).topics
    (answer,) = topic.partitions
    assert (answer.error_code, answer.leader_epoch) == (0, leader_epoch)
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr) == (1, (1, 2))
    assert partition.leader_epoch == leader_epoch


def test_leader_epoch_stays_when_the_isr_grows() -> None:
    cluster = Cluster()
    cluster.write(*feature_records({"metadata.version": 11}))
    topic_id = cluster.topic("t", [1, 2, 3])
    cluster.write(r.PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[1]))
    request = shrink(cluster, [1, 2])
    request.topics[0].partitions[0].partition_epoch = 1
    cluster.do(decide_alter_partition, request)
    assert (cluster.partition("t").isr, cluster.partition("t").leader_epoch) == ((1, 2), 0)


def test_partition_named_twice_in_alter_partition_counts_once() -> None:
    cluster = Cluster()
    cluster.topic("t", [1, 2, 3])
    (topic,) = cluster.do(decide_alter_partition, shrink(cluster, [1, 2], [1, 3])).topics
    assert [partition.error_code for partition in topic.partitions] == [
        0,
        errors.InvalidRequest.code,
    ]
    assert cluster.partition("t").isr == (1, 2)


def test_partition_named_twice_is_not_reassigned() -> None:
    """Two moves decided from one state would leave replicas that neither of them adds."""
    cluster = Cluster((1, 2, 3, 4))
    cluster.topic("t", [1], [1])
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    move = topic.ReassignablePartition
    moves = [
        move(partition_index=0, replicas=[2]),
        move(partition_index=1, replicas=[2]),
        move(partition_index=0, replicas=[3, 4]),
    ]
    request = AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=moves)])
    (answer,) = cluster.do(decide_reassign, request).responses
    refused = errors.InvalidRequest.code
    assert [partition.error_code for partition in answer.partitions] == [refused, 0, refused]
    assert cluster.partition("t", 0).replicas == (1,)
    assert set(cluster.partition("t", 1).adding) <= set(cluster.partition("t", 1).replicas)


def test_partition_named_twice_is_not_elected_for() -> None:
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1, 2])
    cluster.write(r.PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=2))
    partitions = ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 0])
    request = ElectLeadersRequest(election_type=0, topic_partitions=[partitions], timeout_ms=1000)
    (result,) = cluster.do(decide_elect_leaders, request).replica_election_results
    codes = [partition.error_code for partition in result.partition_result]
    assert codes == [errors.InvalidRequest.code] * 2
    assert not cluster.records


def feature(name: str, level: int, kind: int = 1) -> UpdateFeaturesRequest:
    update = UpdateFeaturesRequest.FeatureUpdateKey
    return UpdateFeaturesRequest(
        feature_updates=[update(feature=name, max_version_level=level, upgrade_type=kind)]
    )


def update_feature(cluster: Cluster, request: UpdateFeaturesRequest) -> Any:
    def decide(state: Any, update: Any) -> Any:
        return decide_update_features(
            state, update, kraft_version=0, check_kraft_version=lambda level: None
        )

    return cluster.do(decide, request)


def test_group_version_is_raised_and_lowered() -> None:
    cluster = Cluster()
    assert update_feature(cluster, feature("group.version", 1)).error_code == 0
    assert cluster.state.image.features["group.version"] == 1
    reply = update_feature(cluster, feature("group.version", 0))
    assert reply.error_code == errors.InvalidUpdateVersion.code
    assert update_feature(cluster, feature("group.version", 0, kind=2)).error_code == 0
    assert "group.version" not in cluster.state.image.features


def test_unsupported_feature_level_of_apache_kafka_may_be_lowered() -> None:
    """Log directories that Apache Kafka formatted have such levels."""
    cluster = Cluster()
    cluster.write(*feature_records({"metadata.version": 30, "transaction.version": 2}))
    assert update_feature(cluster, feature("transaction.version", 1, kind=2)).error_code == 0
    assert cluster.state.image.features["transaction.version"] == 1
