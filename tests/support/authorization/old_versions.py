"""The table's requests in their oldest versions, whose responses have other shapes."""

from typing import Final

from tests.support.authorization.cases import (
    CASES,
    CLUSTER,
    NEW_ACL,
    TOPIC,
    Case,
    Json,
    acl_filter,
    alter_old,
    describe,
    fetch,
    new_topic,
    offsets,
    produce,
    txn_offsets,
)
from tests.support.authorization.share_groups import SHARE_GROUPS
from tests.support.authorization.share_partitions import SHARES
from tests.support.authorization.share_states import SHARE_STATES
from tests.support.authorization.streams_groups import STREAMS_GROUPS


def _oldest(api: str, version: int, body: Json, *needs: str) -> Case:
    return Case(f"{api}, version {version}", api, version, body, needs)


def _without_member(body: Json) -> Json:
    return {name: value for name, value in body.items() if name != "memberId"}


OLDEST: Final = (
    _oldest("Produce", 3, produce(3), "Write Topic {T}"),
    _oldest("Fetch", 4, fetch({"topic": "{T}"}), "Read Topic {T}"),
    _oldest("ListOffsets", 1,
            {"replicaId": -1, "topics": [
                {"name": "{T}", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]},
            "Describe Topic {T}"),
    _oldest("Metadata", 0, {"topics": []}, "Describe Topic {T}"),
    _oldest("Metadata", 1, {"topics": [TOPIC]}, "Describe Topic {T}"),
    _oldest("OffsetCommit", 2, offsets(TOPIC), "Read Group {G}", "Read Topic {T}"),
    _oldest("OffsetFetch", 1,
            {"groupId": "{G}", "topics": [{"name": "{T}", "partitionIndexes": [0]}]},
            "Describe Group {G}", "Describe Topic {T}"),
    _oldest("FindCoordinator", 0, {"key": "{G}"}, "Describe Group {G}"),
    _oldest("LeaveGroup", 0, {"groupId": "{G}", "memberId": "unknown"}, "Read Group {G}"),
    _oldest("DescribeGroups", 0, {"groups": ["{G}"]}, "Describe Group {G}"),
    _oldest("ListGroups", 0, {}, "Describe Group {G}"),
    _oldest("DeleteGroups", 0, {"groupsNames": ["{G}"]}, "Delete Group {G}"),
    _oldest("CreateTopics", 2, new_topic(), "Create Topic {A}"),
    _oldest("DeleteTopics", 1, {"topicNames": ["{T}"], "timeoutMs": 1000}, "Delete Topic {T}"),
    _oldest("InitProducerId", 0, {"transactionalId": "{X}", "transactionTimeoutMs": 10000},
            "Write TransactionalId {X}"),
    _oldest("AddPartitionsToTxn", 0,
            {"v3AndBelowTransactionalId": "{X}", "v3AndBelowProducerId": 77,
             "v3AndBelowProducerEpoch": 0,
             "v3AndBelowTopics": [{"name": "{T}", "partitions": [0]}]},
            "Write TransactionalId {X}", "Write Topic {T}"),
    _oldest("TxnOffsetCommit", 0, _without_member(txn_offsets()),
            "Write TransactionalId {X}", "Read Group {G}", "Read Topic {T}"),
    _oldest("DescribeConfigs", 1, describe(2, "{T}"), "DescribeConfigs Topic {T}"),
    _oldest("AlterConfigs", 0, alter_old(2, "{T}", "retention.ms"), "AlterConfigs Topic {T}"),
    _oldest("DescribeLogDirs", 1, {"topics": [{"topic": "{T}", "partitions": [0]}]},
            f"Describe {CLUSTER}"),
    _oldest("ElectLeaders", 0, {"topicPartitions": [{"topic": "{T}", "partitions": [0]}]},
            f"Alter {CLUSTER}"),
    _oldest("DescribeAcls", 1, acl_filter("nothing"), f"Describe {CLUSTER}"),
    _oldest("CreateAcls", 1, {"creations": [NEW_ACL]}, f"Alter {CLUSTER}"),
    _oldest("DescribeCluster", 0, {"includeClusterAuthorizedOperations": True},
            f"Describe {CLUSTER}"),
)  # fmt: skip

BY_HAND: Final = (*CASES, *SHARE_STATES, *SHARE_GROUPS, *SHARES, *STREAMS_GROUPS, *OLDEST)
