"""One table of requests with the permissions that each needs, as Kafka checks them.

Each case is sent with all its permissions, without each of them, and with none. ``{T}`` is an
existing topic, ``{ID}`` its id, ``{A}`` a topic that does not exist, ``{G}`` a group with offsets,
``{X}`` a transactional id with a producer. Every attempt has its own. Requests change as little as
possible: many fail for another reason once they are allowed.
"""

from collections.abc import Iterator
from typing import Any, Final

import attrs

Json = dict[str, Any]
NOWHERE: Final = "EjRWeJq83v8SNFZ4mrze_w"
"""The id of a topic that does not exist, and of another cluster."""
BATCH: Final = "{BATCH}"
"""Stands for a plain batch; with a suffix, for one of an idempotent or transactional producer."""


@attrs.frozen
class Case:
    """A request and the permissions that it needs."""

    name: str
    api: str
    version: int
    body: Json
    needs: tuple[str, ...]
    """Operation, resource type and resource, such as "Write Topic {T}"."""
    listener: str = "broker"

    def attempts(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield sets of permissions, each with a text that tells what it lacks."""
        yield "allowed", self.needs
        if len(self.needs) > 1:
            for need in self.needs:
                yield f"without {need}", tuple(other for other in self.needs if other != need)
        yield "denied", ()


CLUSTER: Final = "Cluster kafka-cluster"


def produce(version: int, batch: str = BATCH, **more: Any) -> Json:
    topic = {"name": "{T}"} if version < 13 else {"topicId": "{ID}"}
    data = [{**topic, "partitionData": [{"index": 0, "records": batch}]}]
    return {"transactionalId": None, "acks": 1, "timeoutMs": 1000, "topicData": data} | more


def fetch(topic: Json, **more: Any) -> Json:
    partition = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}
    return {
        "maxWaitMs": 0,
        "minBytes": 0,
        "topics": [{**topic, "partitions": [partition]}],
    } | more


def offsets(topic: Json, **more: Any) -> Json:
    partition = {"partitionIndex": 0, "committedOffset": 0, "committedMetadata": ""}
    return {
        "groupId": "{G}",
        "memberId": "",
        "topics": [{**topic, "partitions": [partition]}],
    } | more


def _fetch_offsets(topics: list[Json] | None) -> Json:
    return {"groups": [{"groupId": "{G}", "topics": topics}]}


def new_topic(**more: Any) -> Json:
    topic = {"name": "{A}", "numPartitions": 1, "replicationFactor": 1}
    return {"topics": [topic], "timeoutMs": 1000, "validateOnly": True} | more


def txn_offsets() -> Json:
    return offsets({"name": "{T}"}) | {
        "transactionalId": "{X}",
        "producerId": 77,
        "producerEpoch": 0,
    }


def _alter(resource_type: int, name: str, setting: str) -> Json:
    config = {"name": setting, "value": "50000", "configOperation": 0}
    resource = {"resourceType": resource_type, "resourceName": name, "configs": [config]}
    return {"resources": [resource], "validateOnly": True}


def alter_old(resource_type: int, name: str, setting: str) -> Json:
    body = _alter(resource_type, name, setting)
    del body["resources"][0]["configs"][0]["configOperation"]
    return body


def describe(resource_type: int, name: str) -> Json:
    return {"resources": [{"resourceType": resource_type, "resourceName": name}]}


def acl_filter(name: str) -> Json:
    return {
        "resourceTypeFilter": 2,
        "resourceNameFilter": name,
        "patternTypeFilter": 3,
        "principalFilter": None,
        "hostFilter": None,
        "operation": 1,
        "permissionType": 1,
    }


NEW_ACL: Final = {
    "resourceType": 2,
    "resourceName": "",
    "resourcePatternType": 3,
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permissionType": 3,
}
_QUORUM_TOPIC: Final = {"topicName": "__cluster_metadata", "partitions": []}
_NODE: Final = {"brokerId": 9, "brokerEpoch": 1}
TOPIC: Final = {"name": "{T}"}
_TOPIC_ID: Final = {"topicId": "{ID}"}

DATA: Final = (
    Case("Produce", "Produce", 12, produce(12), ("Write Topic {T}",)),
    Case("Produce by id", "Produce", 13, produce(13), ("Write Topic {T}",)),
    Case(
        "Produce to an unknown topic", "Produce", 12,
        {"transactionalId": None, "acks": 1, "timeoutMs": 1000, "topicData": [
            {"name": "{A}", "partitionData": [{"index": 0, "records": BATCH}]}]},
        ("Write Topic {A}",),
    ),
    Case(
        "Produce to an unknown id", "Produce", 13,
        {"transactionalId": None, "acks": 1, "timeoutMs": 1000, "topicData": [
            {"topicId": NOWHERE, "partitionData": [{"index": 0, "records": BATCH}]}]},
        (),
    ),
    Case(
        "Produce of an idempotent producer", "Produce", 12, produce(12, "{BATCH idempotent}"),
        ("Write Topic {T}",),
    ),
    Case(
        "Produce in a transaction", "Produce", 12,
        produce(12, "{BATCH transactional}", transactionalId="{X}", acks=-1),
        ("Write TransactionalId {X}", "Write Topic {T}"),
    ),
    Case(
        "Produce to an unknown topic in a transaction", "Produce", 12,
        {"transactionalId": "{X}", "acks": -1, "timeoutMs": 1000, "topicData": [
            {"name": "{A}", "partitionData": [{"index": 0, "records": "{BATCH transactional}"}]}]},
        ("Write TransactionalId {X}", "Write Topic {A}"),
    ),
    Case("Fetch", "Fetch", 12, fetch({"topic": "{T}"}), ("Read Topic {T}",)),
    Case("Fetch by id", "Fetch", 17, fetch(_TOPIC_ID), ("Read Topic {T}",)),
    Case("Fetch of an unknown topic", "Fetch", 12, fetch({"topic": "{A}"}), ("Read Topic {A}",)),
    Case("Fetch of an unknown id", "Fetch", 17, fetch({"topicId": NOWHERE}), ()),
    Case(
        "Fetch in a new session", "Fetch", 17, fetch(_TOPIC_ID, sessionEpoch=0),
        ("Read Topic {T}",),
    ),
    Case(
        "Fetch of a follower", "Fetch", 12, fetch({"topic": "{T}"}, replicaId=9),
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "Fetch of a follower by id", "Fetch", 17,
        fetch(_TOPIC_ID, replicaState={"replicaId": 9, "replicaEpoch": 5}),
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "Fetch of a follower with Read only", "Fetch", 12, fetch({"topic": "{T}"}, replicaId=9),
        ("Read Topic {T}",),
    ),
    Case(
        "ListOffsets", "ListOffsets", 9,
        {"replicaId": -1, "topics": [
            {"name": "{T}", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]},
        ("Describe Topic {T}",),
    ),
    Case(
        "ListOffsets of an unknown topic", "ListOffsets", 9,
        {"replicaId": -1, "topics": [
            {"name": "{A}", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]},
        ("Describe Topic {A}",),
    ),
    Case(
        "ListOffsets of a follower", "ListOffsets", 9,
        {"replicaId": 9, "topics": [
            {"name": "{T}", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]},
        ("Describe Topic {T}",),
    ),
    Case(
        "DeleteRecords", "DeleteRecords", 2,
        {"timeoutMs": 1000, "topics": [
            {"name": "{T}", "partitions": [{"partitionIndex": 0, "offset": 0}]}]},
        ("Delete Topic {T}",),
    ),
    Case(
        "DeleteRecords of an unknown topic", "DeleteRecords", 2,
        {"timeoutMs": 1000, "topics": [
            {"name": "{A}", "partitions": [{"partitionIndex": 0, "offset": 0}]}]},
        ("Delete Topic {A}",),
    ),
    Case(
        "OffsetForLeaderEpoch", "OffsetForLeaderEpoch", 4,
        {"replicaId": -1, "topics": [
            {"topic": "{T}", "partitions": [{"partition": 0, "leaderEpoch": 0}]}]},
        ("Describe Topic {T}",),
    ),
    Case(
        "OffsetForLeaderEpoch of a follower", "OffsetForLeaderEpoch", 4,
        {"replicaId": 9, "topics": [
            {"topic": "{T}", "partitions": [{"partition": 0, "leaderEpoch": 0}]}]},
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "DescribeProducers", "DescribeProducers", 0,
        {"topics": [{"name": "{T}", "partitionIndexes": [0]}]}, ("Read Topic {T}",),
    ),
    Case(
        "DescribeProducers of an unknown topic", "DescribeProducers", 0,
        {"topics": [{"name": "{A}", "partitionIndexes": [0]}]}, ("Read Topic {A}",),
    ),
)  # fmt: skip

TOPICS: Final = (
    Case(
        "Metadata", "Metadata", 12,
        {"topics": [TOPIC], "allowAutoTopicCreation": False,
         "includeTopicAuthorizedOperations": True},
        ("Describe Topic {T}",),
    ),
    Case(
        "Metadata by id", "Metadata", 12,
        {"topics": [{"name": None, "topicId": "{ID}"}], "allowAutoTopicCreation": False,
         "includeTopicAuthorizedOperations": True},
        ("Describe Topic {T}",),
    ),
    Case(
        "Metadata of an unknown id", "Metadata", 12,
        {"topics": [{"name": None, "topicId": NOWHERE}], "allowAutoTopicCreation": False}, (),
    ),
    Case(
        "Metadata with several operations", "Metadata", 12,
        {"topics": [TOPIC], "allowAutoTopicCreation": False,
         "includeTopicAuthorizedOperations": True},
        ("Read Topic {T}", "AlterConfigs Topic {T}"),
    ),
    Case(
        "Metadata of all topics", "Metadata", 12,
        {"topics": None, "allowAutoTopicCreation": False,
         "includeTopicAuthorizedOperations": True},
        ("Describe Topic {T}",),
    ),
    Case(
        "Metadata of an unknown topic", "Metadata", 12,
        {"topics": [{"name": "{A}"}], "allowAutoTopicCreation": False,
         "includeTopicAuthorizedOperations": True},
        ("Describe Topic {A}",),
    ),
    Case(
        "Metadata that creates a topic", "Metadata", 12,
        {"topics": [{"name": "{A}"}], "allowAutoTopicCreation": True},
        ("Describe Topic {A}", "Create Topic {A}"),
    ),
    Case(
        "Metadata that creates a topic in the cluster", "Metadata", 12,
        {"topics": [{"name": "{A}"}], "allowAutoTopicCreation": True},
        ("Describe Topic {A}", f"Create {CLUSTER}"),
    ),
    Case(
        "Metadata with the cluster's operations", "Metadata", 9,
        {"topics": [], "includeClusterAuthorizedOperations": True},
        (f"Describe {CLUSTER}", f"IdempotentWrite {CLUSTER}"),
    ),
    Case(
        "DescribeTopicPartitions", "DescribeTopicPartitions", 0, {"topics": [TOPIC]},
        ("Describe Topic {T}",),
    ),
    Case(
        "DescribeTopicPartitions of an unknown topic", "DescribeTopicPartitions", 0,
        {"topics": [{"name": "{A}"}]}, ("Describe Topic {A}",),
    ),
    Case(
        "DescribeTopicPartitions of all topics", "DescribeTopicPartitions", 0, {"topics": []},
        ("Describe Topic {T}",),
    ),
    Case("CreateTopics", "CreateTopics", 7, new_topic(), ("Create Topic {A}",)),
    Case(
        "CreateTopics with settings", "CreateTopics", 7, new_topic(),
        ("Create Topic {A}", "DescribeConfigs Topic {A}"),
    ),
    Case(
        "CreateTopics in the cluster", "CreateTopics", 7, new_topic(), (f"Create {CLUSTER}",),
    ),
    Case(
        "CreateTopics of an existing topic", "CreateTopics", 7,
        new_topic(topics=[{"name": "{T}", "numPartitions": 1, "replicationFactor": 1}]),
        ("Create Topic {T}",),
    ),
    Case(
        "CreatePartitions", "CreatePartitions", 3,
        {"topics": [{"name": "{T}", "count": 2, "assignments": None}], "timeoutMs": 1000,
         "validateOnly": True},
        ("Alter Topic {T}",),
    ),
    Case(
        "CreatePartitions of an unknown topic", "CreatePartitions", 3,
        {"topics": [{"name": "{A}", "count": 2, "assignments": None}], "timeoutMs": 1000,
         "validateOnly": True},
        ("Alter Topic {A}",),
    ),
    Case(
        "DeleteTopics", "DeleteTopics", 6, {"topics": [TOPIC], "timeoutMs": 1000},
        ("Delete Topic {T}",),
    ),
    Case(
        "DeleteTopics by id", "DeleteTopics", 6,
        {"topics": [{"name": None, "topicId": "{ID}"}], "timeoutMs": 1000}, ("Delete Topic {T}",),
    ),
    Case(
        "DeleteTopics by id, described only", "DeleteTopics", 6,
        {"topics": [{"name": None, "topicId": "{ID}"}], "timeoutMs": 1000}, ("Describe Topic {T}",),
    ),
    Case(
        "DeleteTopics of the cluster", "DeleteTopics", 6, {"topics": [TOPIC], "timeoutMs": 1000},
        (f"Delete {CLUSTER}",),
    ),
    Case(
        "DeleteTopics of an unknown topic", "DeleteTopics", 6,
        {"topics": [{"name": "{A}"}], "timeoutMs": 1000}, ("Delete Topic {A}",),
    ),
    Case(
        "DeleteTopics of an unknown topic, described only", "DeleteTopics", 6,
        {"topics": [{"name": "{A}"}], "timeoutMs": 1000}, ("Describe Topic {A}",),
    ),
    Case(
        "DeleteTopics of an unknown id", "DeleteTopics", 6,
        {"topics": [{"name": None, "topicId": NOWHERE}], "timeoutMs": 1000}, (),
    ),
    Case(
        "DeleteTopics by name, version 5", "DeleteTopics", 5,
        {"topicNames": ["{T}"], "timeoutMs": 1000}, ("Delete Topic {T}",),
    ),
    Case(
        "ElectLeaders", "ElectLeaders", 2,
        {"electionType": 0, "topicPartitions": [{"topic": "{T}", "partitions": [0]}],
         "timeoutMs": 1000},
        (f"Alter {CLUSTER}",),
    ),
    Case(
        "AlterPartitionReassignments", "AlterPartitionReassignments", 0,
        {"timeoutMs": 1000, "topics": [
            {"name": "{T}", "partitions": [{"partitionIndex": 0, "replicas": None}]}]},
        (f"Alter {CLUSTER}",),
    ),
    Case(
        "ListPartitionReassignments", "ListPartitionReassignments", 0,
        {"timeoutMs": 1000, "topics": None}, (f"Describe {CLUSTER}",),
    ),
)  # fmt: skip

GROUPS: Final = (
    Case(
        "OffsetCommit", "OffsetCommit", 9, offsets(TOPIC), ("Read Group {G}", "Read Topic {T}"),
    ),
    Case(
        "OffsetCommit by id", "OffsetCommit", 10, offsets(_TOPIC_ID),
        ("Read Group {G}", "Read Topic {T}"),
    ),
    Case(
        "OffsetCommit of an unknown topic", "OffsetCommit", 9, offsets({"name": "{A}"}),
        ("Read Group {G}", "Read Topic {A}"),
    ),
    Case(
        "OffsetFetch", "OffsetFetch", 9,
        _fetch_offsets([{"name": "{T}", "partitionIndexes": [0]}]),
        ("Describe Group {G}", "Describe Topic {T}"),
    ),
    Case(
        "OffsetFetch by id", "OffsetFetch", 10,
        _fetch_offsets([{"topicId": "{ID}", "partitionIndexes": [0]}]),
        ("Describe Group {G}", "Describe Topic {T}"),
    ),
    Case(
        "OffsetFetch of all topics", "OffsetFetch", 9, _fetch_offsets(None),
        ("Describe Group {G}", "Describe Topic base"),
    ),
    Case(
        "OffsetFetch, version 7", "OffsetFetch", 7,
        {"groupId": "{G}", "topics": [{"name": "{T}", "partitionIndexes": [0]}]},
        ("Describe Group {G}", "Describe Topic {T}"),
    ),
    Case(
        "OffsetDelete", "OffsetDelete", 0,
        {"groupId": "{G}", "topics": [{"name": "base", "partitions": [{"partitionIndex": 0}]}]},
        ("Delete Group {G}", "Read Topic base"),
    ),
    Case(
        "FindCoordinator of a group", "FindCoordinator", 6,
        {"keyType": 0, "coordinatorKeys": ["{G}"]}, ("Describe Group {G}",),
    ),
    Case(
        "FindCoordinator of a group, version 3", "FindCoordinator", 3,
        {"keyType": 0, "key": "{G}"}, ("Describe Group {G}",),
    ),
    Case(
        "FindCoordinator of a transactional id", "FindCoordinator", 6,
        {"keyType": 1, "coordinatorKeys": ["{X}"]}, ("Describe TransactionalId {X}",),
    ),
    Case(
        "JoinGroup", "JoinGroup", 9,
        {"groupId": "{G}", "sessionTimeoutMs": 10000, "rebalanceTimeoutMs": 10000,
         "memberId": "unknown", "protocolType": "consumer",
         "protocols": [{"name": "range", "metadata": ""}]},
        ("Read Group {G}",),
    ),
    Case(
        "SyncGroup", "SyncGroup", 5,
        {"groupId": "{G}", "generationId": 1, "memberId": "unknown", "protocolType": "consumer",
         "protocolName": "range"},
        ("Read Group {G}",),
    ),
    Case(
        "Heartbeat", "Heartbeat", 4, {"groupId": "{G}", "generationId": 1, "memberId": "unknown"},
        ("Read Group {G}",),
    ),
    Case(
        "LeaveGroup", "LeaveGroup", 5, {"groupId": "{G}", "members": [{"memberId": "unknown"}]},
        ("Read Group {G}",),
    ),
    Case(
        "DescribeGroups", "DescribeGroups", 6,
        {"groups": ["{G}"], "includeAuthorizedOperations": True},
        ("Describe Group {G}", "Delete Group {G}"),
    ),
    Case("ListGroups", "ListGroups", 5, {}, ("Describe Group {G}",)),
    Case("ListGroups of the cluster", "ListGroups", 5, {}, (f"Describe {CLUSTER}",)),
    Case("DeleteGroups", "DeleteGroups", 2, {"groupsNames": ["{G}"]}, ("Delete Group {G}",)),
    Case("ConsumerGroupHeartbeat", "ConsumerGroupHeartbeat", 1,
         {"groupId": "{G}", "memberId": "unknown", "memberEpoch": 7, "rebalanceTimeoutMs": 1000,
          "subscribedTopicNames": ["{T}", "{A}"], "topicPartitions": []},
         ("Read Group {G}", "Describe Topic {T}", "Describe Topic {A}")),
    Case("ConsumerGroupDescribe", "ConsumerGroupDescribe", 1,
         {"groupIds": ["{G}"], "includeAuthorizedOperations": True},
         ("Describe Group {G}", "Delete Group {G}")),
)  # fmt: skip

TRANSACTIONS: Final = (
    Case(
        "InitProducerId of a transaction", "InitProducerId", 5,
        {"transactionalId": "{X}", "transactionTimeoutMs": 10000}, ("Write TransactionalId {X}",),
    ),
    Case(
        "InitProducerId", "InitProducerId", 5,
        {"transactionalId": None, "transactionTimeoutMs": 10000}, (f"IdempotentWrite {CLUSTER}",),
    ),
    Case(
        "InitProducerId of a writer", "InitProducerId", 5,
        {"transactionalId": None, "transactionTimeoutMs": 10000}, ("Write Topic {T}",),
    ),
    Case(
        "InitProducerId of a reader", "InitProducerId", 5,
        {"transactionalId": None, "transactionTimeoutMs": 10000}, ("Read Topic {T}",),
    ),
    Case(
        "AddPartitionsToTxn", "AddPartitionsToTxn", 3,
        {"v3AndBelowTransactionalId": "{X}", "v3AndBelowProducerId": 77,
         "v3AndBelowProducerEpoch": 0,
         "v3AndBelowTopics": [{"name": "{T}", "partitions": [0]},
                              {"name": "base", "partitions": [0]}]},
        ("Write TransactionalId {X}", "Write Topic {T}", "Write Topic base"),
    ),
    Case(
        "AddPartitionsToTxn of a broker", "AddPartitionsToTxn", 5,
        {"transactions": [{"transactionalId": "{X}", "producerId": 77, "producerEpoch": 0,
                           "verifyOnly": True, "topics": [{"name": "{T}", "partitions": [0]}]}]},
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "AddOffsetsToTxn", "AddOffsetsToTxn", 4,
        {"transactionalId": "{X}", "producerId": 77, "producerEpoch": 0, "groupId": "{G}"},
        ("Write TransactionalId {X}", "Read Group {G}"),
    ),
    Case(
        "EndTxn", "EndTxn", 5,
        {"transactionalId": "{X}", "producerId": 77, "producerEpoch": 0, "committed": True},
        ("Write TransactionalId {X}",),
    ),
    Case(
        "TxnOffsetCommit", "TxnOffsetCommit", 4, txn_offsets(),
        ("Write TransactionalId {X}", "Read Group {G}", "Read Topic {T}"),
    ),
    Case(
        "WriteTxnMarkers", "WriteTxnMarkers", 1,
        {"markers": [{"producerId": 77, "producerEpoch": 0, "transactionResult": True,
                      "coordinatorEpoch": 0,
                      "topics": [{"name": "{A}", "partitionIndexes": [0]}]}]},
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "WriteTxnMarkers of an administrator", "WriteTxnMarkers", 1,
        {"markers": [{"producerId": 77, "producerEpoch": 0, "transactionResult": True,
                      "coordinatorEpoch": 0,
                      "topics": [{"name": "{A}", "partitionIndexes": [0]}]}]},
        (f"Alter {CLUSTER}",),
    ),
    Case(
        "DescribeTransactions", "DescribeTransactions", 0, {"transactionalIds": ["{X}"]},
        ("Describe TransactionalId {X}",),
    ),
    Case("ListTransactions", "ListTransactions", 1, {}, ("Describe TransactionalId {X}",)),
)  # fmt: skip

ADMIN: Final = (
    Case(
        "DescribeAcls", "DescribeAcls", 3, acl_filter("nothing"), (f"Describe {CLUSTER}",),
    ),
    Case("CreateAcls", "CreateAcls", 3, {"creations": [NEW_ACL]}, (f"Alter {CLUSTER}",)),
    Case(
        "DeleteAcls", "DeleteAcls", 3, {"filters": [acl_filter("nothing")]},
        (f"Alter {CLUSTER}",),
    ),
    Case(
        "DescribeConfigs of a topic", "DescribeConfigs", 4, describe(2, "{T}"),
        ("DescribeConfigs Topic {T}",),
    ),
    Case(
        "DescribeConfigs of an unknown topic", "DescribeConfigs", 4, describe(2, "{A}"),
        ("DescribeConfigs Topic {A}",),
    ),
    Case(
        "DescribeConfigs of a broker", "DescribeConfigs", 4, describe(4, "1"),
        (f"DescribeConfigs {CLUSTER}",),
    ),
    Case(
        "DescribeConfigs of a group", "DescribeConfigs", 4, describe(32, "{G}"),
        ("DescribeConfigs Group {G}",),
    ),
    Case(
        "DescribeConfigs of client metrics", "DescribeConfigs", 4, describe(16, "m"),
        (f"DescribeConfigs {CLUSTER}",),
    ),
    Case(
        "IncrementalAlterConfigs of a topic", "IncrementalAlterConfigs", 1,
        _alter(2, "{T}", "retention.ms"), ("AlterConfigs Topic {T}",),
    ),
    Case(
        "IncrementalAlterConfigs of an unknown topic", "IncrementalAlterConfigs", 1,
        _alter(2, "{A}", "retention.ms"), ("AlterConfigs Topic {A}",),
    ),
    Case(
        "IncrementalAlterConfigs of a broker", "IncrementalAlterConfigs", 1,
        _alter(4, "", "log.cleaner.backoff.ms"), (f"AlterConfigs {CLUSTER}",),
    ),
    Case(
        "IncrementalAlterConfigs of a group", "IncrementalAlterConfigs", 1,
        _alter(32, "{G}", "consumer.session.timeout.ms"), ("AlterConfigs Group {G}",),
    ),
    Case(
        "IncrementalAlterConfigs of client metrics", "IncrementalAlterConfigs", 1,
        _alter(16, "m", "interval.ms"), (f"AlterConfigs {CLUSTER}",),
    ),
    Case(
        "AlterConfigs of a topic", "AlterConfigs", 2, alter_old(2, "{T}", "retention.ms"),
        ("AlterConfigs Topic {T}",),
    ),
    Case(
        "AlterConfigs of a broker", "AlterConfigs", 2,
        alter_old(4, "", "log.cleaner.backoff.ms"), (f"AlterConfigs {CLUSTER}",),
    ),
    Case(
        "ListConfigResources", "ListConfigResources", 1, {"resourceTypes": [16]},
        (f"DescribeConfigs {CLUSTER}",),
    ),
    Case(
        "AlterReplicaLogDirs", "AlterReplicaLogDirs", 2,
        {"dirs": [{"path": "/nowhere", "topics": [{"name": "{T}", "partitions": [0]}]}]},
        (f"Alter {CLUSTER}",),
    ),
    Case(
        "DescribeLogDirs", "DescribeLogDirs", 4,
        {"topics": [{"topic": "{T}", "partitions": [0]}]}, (f"Describe {CLUSTER}",),
    ),
    Case(
        "DescribeClientQuotas", "DescribeClientQuotas", 1, {"components": [], "strict": False},
        (f"DescribeConfigs {CLUSTER}",),
    ),
    Case(
        "AlterClientQuotas", "AlterClientQuotas", 1,
        {"entries": [{"entity": [{"entityType": "user", "entityName": "u"}],
                      "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}],
         "validateOnly": True},
        (f"AlterConfigs {CLUSTER}",),
    ),
    Case("AlterUserScramCredentials", "AlterUserScramCredentials", 0,
         {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
         (f"Alter {CLUSTER}",)),
    Case(
        "DescribeQuorum", "DescribeQuorum", 1,
        {"topics": [{"topicName": "__cluster_metadata",
                     "partitions": [{"partitionIndex": 0}]}]},
        (f"Describe {CLUSTER}",),
    ),
    Case(
        "UpdateFeatures", "UpdateFeatures", 1,
        {"featureUpdates": [{"feature": "nothing", "maxVersionLevel": 1, "upgradeType": 1}],
         "validateOnly": True},
        (f"Alter {CLUSTER}",),
    ),
    Case(
        "DescribeCluster", "DescribeCluster", 1, {"includeClusterAuthorizedOperations": False}, (),
    ),
    Case(
        "DescribeCluster with operations", "DescribeCluster", 1,
        {"includeClusterAuthorizedOperations": True},
        (f"Describe {CLUSTER}", f"DescribeConfigs {CLUSTER}"),
    ),
    Case(
        "UnregisterBroker", "UnregisterBroker", 0, {"brokerId": 99}, (f"Alter {CLUSTER}",),
    ),
    Case(
        "AddRaftVoter", "AddRaftVoter", 0,
        {"clusterId": NOWHERE, "timeoutMs": 100, "voterId": 9, "voterDirectoryId": NOWHERE},
        (f"Alter {CLUSTER}",),
    ),
    Case(
        "RemoveRaftVoter", "RemoveRaftVoter", 0,
        {"clusterId": NOWHERE, "voterId": 9, "voterDirectoryId": NOWHERE}, (f"Alter {CLUSTER}",),
    ),
    Case("ApiVersions", "ApiVersions", 3,
         {"clientSoftwareName": "c", "clientSoftwareVersion": "1"}, ()),
)  # fmt: skip


def _of_controller(name: str, version: int, body: Json, *needs: str) -> Case:
    return Case(f"{name} of a controller", name, version, body, needs, listener="controller")


CONTROLLER: Final = (
    _of_controller("Fetch", 17, fetch({"topicId": "AAAAAAAAAAAAAAAAAAAAAQ"}, clusterId=NOWHERE),
                   f"ClusterAction {CLUSTER}"),
    _of_controller("FetchSnapshot", 0, {"clusterId": NOWHERE, "topics": []},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("Vote", 1, {"clusterId": NOWHERE, "topics": [_QUORUM_TOPIC]},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("BeginQuorumEpoch", 1, {"clusterId": NOWHERE, "topics": [_QUORUM_TOPIC]},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("EndQuorumEpoch", 1, {"clusterId": NOWHERE, "topics": [_QUORUM_TOPIC]},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("UpdateRaftVoter", 0,
                   {"clusterId": NOWHERE, "currentLeaderEpoch": 1, "voterId": 9,
                    "voterDirectoryId": NOWHERE,
                    "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1}},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("BrokerRegistration", 4,
                   {"brokerId": 9, "clusterId": NOWHERE, "incarnationId": NOWHERE, "rack": None},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("BrokerHeartbeat", 1,
                   {**_NODE, "currentMetadataOffset": 1, "wantFence": False,
                    "wantShutDown": False},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("ControllerRegistration", 0,
                   {"controllerId": 9, "incarnationId": NOWHERE, "zkMigrationReady": False},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("AlterPartition", 3, {**_NODE, "topics": [{"topicId": NOWHERE}]},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("AllocateProducerIds", 0, _NODE, f"ClusterAction {CLUSTER}"),
    _of_controller("AssignReplicasToDirs", 0, {**_NODE, "directories": []},
                   f"ClusterAction {CLUSTER}"),
    _of_controller("CreateTopics", 7, new_topic(), "Create Topic {A}"),
    _of_controller("DescribeCluster", 1,
                   {"includeClusterAuthorizedOperations": True, "endpointType": 2},
                   f"Alter {CLUSTER}"),
    _of_controller("DescribeQuorum", 1,
                   {"topics": [{"topicName": "__cluster_metadata",
                                "partitions": [{"partitionIndex": 0}]}]},
                   f"Describe {CLUSTER}"),
    _of_controller("DescribeConfigs", 4, describe(4, "1"), f"DescribeConfigs {CLUSTER}"),
    _of_controller("IncrementalAlterConfigs", 1, _alter(4, "", "log.cleaner.backoff.ms"),
                   f"AlterConfigs {CLUSTER}"),
    _of_controller("DescribeAcls", 3, acl_filter("nothing"), f"Describe {CLUSTER}"),
    _of_controller("CreateAcls", 3, {"creations": [NEW_ACL]}, f"Alter {CLUSTER}"),
    _of_controller("ElectLeaders", 2,
                   {"electionType": 0, "topicPartitions": [{"topic": "{T}", "partitions": [0]}],
                    "timeoutMs": 1000},
                   f"Alter {CLUSTER}"),
)  # fmt: skip

CASES: Final = (*DATA, *TOPICS, *GROUPS, *TRANSACTIONS, *ADMIN, *CONTROLLER)
