"""Every API of Kafka 4.3: key, name, versions, listeners.

The table says what exists; what kwire serves is said by the handlers.  The versions are those a
message table can decode; the last one may be unstable (not advertised), which ``stable`` tells.
"""

from importlib import import_module
from typing import Any, Final

import attrs


@attrs.frozen
class Api:
    """One API key."""

    key: int
    name: str
    module: str
    """Of :mod:`kwire.codec.messages`."""
    first: int
    last: int
    stable: int
    broker: bool
    """Served on the listeners of clients and brokers."""
    controller: bool
    """Served on the controller's listener."""
    forwarded: bool
    """Brokers pass it on to the active controller."""

    @property
    def request(self) -> type[Any]:
        """The request's message class, imported on first use."""
        return self._class("Request")

    @property
    def response(self) -> type[Any]:
        return self._class("Response")

    def _class(self, suffix: str) -> type[Any]:
        made: type[Any] = getattr(
            import_module(f"kwire.codec.messages.{self.module}"), self.name + suffix
        )
        return made


APIS: Final = (
    Api(0, "Produce", "produce", 3, 13, 13, True, False, False),
    Api(1, "Fetch", "fetch", 4, 18, 18, True, True, False),
    Api(2, "ListOffsets", "list_offsets", 1, 11, 11, True, False, False),
    Api(3, "Metadata", "metadata", 0, 13, 13, True, False, False),
    Api(8, "OffsetCommit", "offset_commit", 2, 10, 10, True, False, False),
    Api(9, "OffsetFetch", "offset_fetch", 1, 10, 10, True, False, False),
    Api(10, "FindCoordinator", "find_coordinator", 0, 6, 6, True, False, False),
    Api(11, "JoinGroup", "join_group", 0, 9, 9, True, False, False),
    Api(12, "Heartbeat", "heartbeat", 0, 4, 4, True, False, False),
    Api(13, "LeaveGroup", "leave_group", 0, 5, 5, True, False, False),
    Api(14, "SyncGroup", "sync_group", 0, 5, 5, True, False, False),
    Api(15, "DescribeGroups", "describe_groups", 0, 6, 6, True, False, False),
    Api(16, "ListGroups", "list_groups", 0, 5, 5, True, False, False),
    Api(17, "SaslHandshake", "sasl_handshake", 0, 1, 1, True, True, False),
    Api(18, "ApiVersions", "api_versions", 0, 4, 4, True, True, False),
    Api(19, "CreateTopics", "create_topics", 2, 7, 7, True, True, True),
    Api(20, "DeleteTopics", "delete_topics", 1, 6, 6, True, True, True),
    Api(21, "DeleteRecords", "delete_records", 0, 2, 2, True, False, False),
    Api(22, "InitProducerId", "init_producer_id", 0, 6, 5, True, False, False),
    Api(23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", 2, 4, 4, True, False, False),
    Api(24, "AddPartitionsToTxn", "add_partitions_to_txn", 0, 5, 5, True, False, False),
    Api(25, "AddOffsetsToTxn", "add_offsets_to_txn", 0, 4, 4, True, False, False),
    Api(26, "EndTxn", "end_txn", 0, 5, 5, True, False, False),
    Api(27, "WriteTxnMarkers", "write_txn_markers", 1, 2, 2, True, False, False),
    Api(28, "TxnOffsetCommit", "txn_offset_commit", 0, 5, 5, True, False, False),
    Api(29, "DescribeAcls", "describe_acls", 1, 3, 3, True, True, False),
    Api(30, "CreateAcls", "create_acls", 1, 3, 3, True, True, True),
    Api(31, "DeleteAcls", "delete_acls", 1, 3, 3, True, True, True),
    Api(32, "DescribeConfigs", "describe_configs", 1, 4, 4, True, True, False),
    Api(33, "AlterConfigs", "alter_configs", 0, 2, 2, True, True, True),
    Api(34, "AlterReplicaLogDirs", "alter_replica_log_dirs", 1, 2, 2, True, False, False),
    Api(35, "DescribeLogDirs", "describe_log_dirs", 1, 5, 5, True, False, False),
    Api(36, "SaslAuthenticate", "sasl_authenticate", 0, 2, 2, True, True, False),
    Api(37, "CreatePartitions", "create_partitions", 0, 3, 3, True, True, True),
    Api(38, "CreateDelegationToken", "create_delegation_token", 1, 3, 3, True, True, True),
    Api(39, "RenewDelegationToken", "renew_delegation_token", 1, 2, 2, True, True, True),
    Api(40, "ExpireDelegationToken", "expire_delegation_token", 1, 2, 2, True, True, True),
    Api(41, "DescribeDelegationToken", "describe_delegation_token", 1, 3, 3, True, True, False),
    Api(42, "DeleteGroups", "delete_groups", 0, 2, 2, True, False, False),
    Api(43, "ElectLeaders", "elect_leaders", 0, 2, 2, True, True, True),
    Api(44, "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1, 1, True, True, True),
    Api(
        45,
        "AlterPartitionReassignments",
        "alter_partition_reassignments",
        0,
        1,
        1,
        True,
        True,
        True,
    ),
    Api(
        46, "ListPartitionReassignments", "list_partition_reassignments", 0, 0, 0, True, True, True
    ),
    Api(47, "OffsetDelete", "offset_delete", 0, 0, 0, True, False, False),
    Api(48, "DescribeClientQuotas", "describe_client_quotas", 0, 1, 1, True, False, False),
    Api(49, "AlterClientQuotas", "alter_client_quotas", 0, 1, 1, True, True, True),
    Api(
        50,
        "DescribeUserScramCredentials",
        "describe_user_scram_credentials",
        0,
        0,
        0,
        True,
        True,
        False,
    ),
    Api(51, "AlterUserScramCredentials", "alter_user_scram_credentials", 0, 0, 0, True, True, True),
    Api(52, "Vote", "vote", 0, 2, 2, False, True, False),
    Api(53, "BeginQuorumEpoch", "begin_quorum_epoch", 0, 1, 1, False, True, False),
    Api(54, "EndQuorumEpoch", "end_quorum_epoch", 0, 1, 1, False, True, False),
    Api(55, "DescribeQuorum", "describe_quorum", 0, 2, 2, True, True, True),
    Api(56, "AlterPartition", "alter_partition", 2, 3, 3, False, True, False),
    Api(57, "UpdateFeatures", "update_features", 0, 2, 2, True, True, True),
    Api(58, "Envelope", "envelope", 0, 0, 0, False, True, False),
    Api(59, "FetchSnapshot", "fetch_snapshot", 0, 1, 1, False, True, False),
    Api(60, "DescribeCluster", "describe_cluster", 0, 2, 2, True, True, False),
    Api(61, "DescribeProducers", "describe_producers", 0, 0, 0, True, False, False),
    Api(62, "BrokerRegistration", "broker_registration", 0, 4, 4, False, True, False),
    Api(63, "BrokerHeartbeat", "broker_heartbeat", 0, 2, 2, False, True, False),
    Api(64, "UnregisterBroker", "unregister_broker", 0, 0, 0, True, True, True),
    Api(65, "DescribeTransactions", "describe_transactions", 0, 0, 0, True, False, False),
    Api(66, "ListTransactions", "list_transactions", 0, 2, 2, True, False, False),
    Api(67, "AllocateProducerIds", "allocate_producer_ids", 0, 0, 0, False, True, True),
    Api(68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1, 1, True, False, False),
    Api(69, "ConsumerGroupDescribe", "consumer_group_describe", 0, 1, 1, True, False, False),
    Api(70, "ControllerRegistration", "controller_registration", 0, 0, 0, False, True, False),
    Api(
        71, "GetTelemetrySubscriptions", "get_telemetry_subscriptions", 0, 0, 0, True, False, False
    ),
    Api(72, "PushTelemetry", "push_telemetry", 0, 0, 0, True, False, False),
    Api(73, "AssignReplicasToDirs", "assign_replicas_to_dirs", 0, 0, 0, False, True, False),
    Api(74, "ListConfigResources", "list_config_resources", 0, 1, 1, True, False, False),
    Api(75, "DescribeTopicPartitions", "describe_topic_partitions", 0, 0, 0, True, False, False),
    Api(76, "ShareGroupHeartbeat", "share_group_heartbeat", 1, 1, 1, True, False, False),
    Api(77, "ShareGroupDescribe", "share_group_describe", 1, 1, 1, True, False, False),
    Api(78, "ShareFetch", "share_fetch", 1, 2, 2, True, False, False),
    Api(79, "ShareAcknowledge", "share_acknowledge", 1, 2, 2, True, False, False),
    Api(80, "AddRaftVoter", "add_raft_voter", 0, 1, 1, True, True, True),
    Api(81, "RemoveRaftVoter", "remove_raft_voter", 0, 0, 0, True, True, True),
    Api(82, "UpdateRaftVoter", "update_raft_voter", 0, 0, 0, False, True, False),
    Api(
        83, "InitializeShareGroupState", "initialize_share_group_state", 0, 0, 0, True, False, False
    ),
    Api(84, "ReadShareGroupState", "read_share_group_state", 0, 0, 0, True, False, False),
    Api(85, "WriteShareGroupState", "write_share_group_state", 0, 1, 1, True, False, False),
    Api(86, "DeleteShareGroupState", "delete_share_group_state", 0, 0, 0, True, False, False),
    Api(
        87,
        "ReadShareGroupStateSummary",
        "read_share_group_state_summary",
        0,
        1,
        1,
        True,
        False,
        False,
    ),
    Api(88, "StreamsGroupHeartbeat", "streams_group_heartbeat", 0, 0, 0, True, False, False),
    Api(89, "StreamsGroupDescribe", "streams_group_describe", 0, 0, 0, True, False, False),
    Api(
        90, "DescribeShareGroupOffsets", "describe_share_group_offsets", 0, 1, 1, True, False, False
    ),
    Api(91, "AlterShareGroupOffsets", "alter_share_group_offsets", 0, 0, 0, True, False, False),
    Api(92, "DeleteShareGroupOffsets", "delete_share_group_offsets", 0, 0, 0, True, False, False),
)

BY_KEY: Final = {api.key: api for api in APIS}
BY_NAME: Final = {api.name: api for api in APIS}

GONE: Final = {
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
}
"""Keys that are reserved: no version of them is left."""
