"""Requests that tests of the controller send, and a setting that they need."""

from typing import Any

from kwire.codec.messages.alter_configs import AlterConfigsRequest
from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.broker_registration import BrokerRegistrationRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.metadata_records import ConfigRecord
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.partitions import UNCLEAN
from tests.support.raftmeta.clusters import CLUSTER, Cluster, directory

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


def assignment(broker: int, epoch: int, topic_id: bytes, log_dir: bytes) -> Any:
    """Return a broker's report of the directory of its replica of partition 0."""
    data = AssignReplicasToDirsRequest.DirectoryData
    partitions = [data.TopicData.PartitionData(partition_index=0)]
    topics = [data.TopicData(topic_id=topic_id, partitions=partitions)]
    return AssignReplicasToDirsRequest(
        broker_id=broker, broker_epoch=epoch, directories=[data(id=log_dir, topics=topics)]
    )


def unclean_election() -> ElectLeadersRequest:
    """Return an operator's request for any leader of partition 0 of ``t``."""
    named = ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])
    return ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=[named])


def unclean_config(kind: int, name: str, value: str) -> ConfigRecord:
    setting = "unclean.leader.election.enable"
    return ConfigRecord(resource_type=kind, resource_name=name, name=setting, value=value)


def reassign(replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    move = topic.ReassignablePartition(partition_index=0, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=[move])])


def register(broker: int, incarnation: bytes = b"n", **more: Any) -> BrokerRegistrationRequest:
    """Return the registration of a broker with all features of this version."""
    feature = BrokerRegistrationRequest.Feature
    fields: dict[str, Any] = {
        "broker_id": broker,
        "cluster_id": CLUSTER,
        "incarnation_id": incarnation * 16,
        "rack": None,
        "log_dirs": [directory(broker)],
        "features": [
            feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED.items()
        ],
    }
    return BrokerRegistrationRequest(**{**fields, **more})


def beat(broker: int, epoch: int, **more: Any) -> BrokerHeartbeatRequest:
    """Return the heartbeat of a broker that has caught up and wants to serve."""
    fields: dict[str, Any] = {
        "broker_id": broker,
        "broker_epoch": epoch,
        "current_metadata_offset": 1 << 40,
        "want_fence": False,
        "want_shut_down": False,
    }
    return BrokerHeartbeatRequest(**{**fields, **more})


Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


def alter(kind: int, name: str, *operations: tuple[str, int, str | None]) -> Any:
    """Return a request that changes settings of one resource: name, operation and value."""
    configs = [
        Resource.AlterableConfig(name=setting, config_operation=operation, value=value)
        for setting, operation, value in operations
    ]
    resource = Resource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def replace(kind: int, name: str, *settings: tuple[str, str]) -> AlterConfigsRequest:
    """Return a request that replaces all settings of one resource."""
    shape = AlterConfigsRequest.AlterConfigsResource
    configs = [shape.AlterableConfig(name=setting, value=value) for setting, value in settings]
    resource = shape(resource_type=kind, resource_name=name, configs=configs)
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def create(name: str, partitions: int = 1) -> CreateTopicsRequest:
    """Return a request for a topic with one replica of each partition."""
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=partitions, replication_factor=1)]
    )
