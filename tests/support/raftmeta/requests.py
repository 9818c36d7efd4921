"""Requests that tests of the controller send, and a setting that they need."""

from typing import Any

from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from kwire.codec.messages.metadata_records import ConfigRecord
from tests.support.raftmeta.clusters import Cluster

IsrTopic = AlterPartitionRequest.TopicData


def isr_request(cluster: Cluster, topic_id: bytes, isr: list[int], **more: Any) -> Any:
    partition = cluster.state.image.topics[topic_id].partitions[0]
    broker = more.pop("broker", partition.leader)
    epochs = more.pop("epochs", {})
    state = IsrTopic.PartitionData.BrokerState
    data = IsrTopic.PartitionData(
        partition_index=more.pop("partition", 0),
        leader_epoch=more.pop("leader_epoch", partition.leader_epoch),
        partition_epoch=more.pop("partition_epoch", partition.partition_epoch),
        new_isr_with_epochs=[
            state(broker_id=replica, broker_epoch=epochs.get(replica, replica * 100))
            for replica in isr
        ],
        **more,
    )
    return AlterPartitionRequest(
        broker_id=broker,
        broker_epoch=broker * 100,
        topics=[IsrTopic(topic_id=topic_id, partitions=[data])],
    )


def unclean_config(kind: int, name: str, value: str) -> ConfigRecord:
    setting = "unclean.leader.election.enable"
    return ConfigRecord(resource_type=kind, resource_name=name, name=setting, value=value)


def reassign(replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    move = topic.ReassignablePartition(partition_index=0, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=[move])])
