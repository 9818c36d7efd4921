"""The records of the metadata log, by their type number."""

from typing import TypeAlias

from kwire.codec.schema import (
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableArray,
    NullableString,
    String,
    UInt16,
    Uuid,
    field,
    message,
    struct,
)


@message(record_type=0, versions="0-4", flexible="0+")
class RegisterBrokerRecord:
    broker_id: Int32 = field("0+")
    is_migrating_zk_broker: Bool = field("2+", default=False)
    incarnation_id: Uuid = field("0+")
    broker_epoch: Int64 = field("0+")

    @struct
    class BrokerEndpoint:
        name: String = field("0+")
        host: String = field("0+")
        port: UInt16 = field("0+")
        security_protocol: Int16 = field("0+")

    end_points: Array[BrokerEndpoint] = field("0+", factory=list)

    @struct
    class BrokerFeature:
        name: String = field("0+")
        min_supported_version: Int16 = field("0+")
        max_supported_version: Int16 = field("0+")

    features: Array[BrokerFeature] = field("0+", factory=list)
    rack: NullableString = field("0+", nullable="0+")
    fenced: Bool = field("0+", default=True)
    in_controlled_shutdown: Bool = field("1+", default=False)
    log_dirs: Array[Uuid] = field("3+", factory=list, tag=0)
    cordoned_log_dirs: NullableArray[Uuid] = field("4+", default=None, nullable="4+", tag=1)


@message(record_type=1, versions="0", flexible="0+")
class UnregisterBrokerRecord:
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+")


@message(record_type=2, versions="0", flexible="0+")
class TopicRecord:
    name: String = field("0+")
    topic_id: Uuid = field("0+")


@message(record_type=3, versions="0-2", flexible="0+")
class PartitionRecord:
    partition_id: Int32 = field("0+", default=-1)
    topic_id: Uuid = field("0+")
    replicas: Array[Int32] = field("0+", factory=list)
    isr: Array[Int32] = field("0+", factory=list)
    removing_replicas: Array[Int32] = field("0+", factory=list)
    adding_replicas: Array[Int32] = field("0+", factory=list)
    leader: Int32 = field("0+", default=-1)
    leader_recovery_state: Int8 = field("0+", default=0, tag=0)
    leader_epoch: Int32 = field("0+", default=-1)
    partition_epoch: Int32 = field("0+", default=-1)
    directories: Array[Uuid] = field("1+", factory=list)
    eligible_leader_replicas: NullableArray[Int32] = field("2+", default=None, nullable="2+", tag=1)
    last_known_elr: NullableArray[Int32] = field("2+", default=None, nullable="2+", tag=2)


@message(record_type=4, versions="0", flexible="0+")
class ConfigRecord:
    resource_type: Int8 = field("0+")
    resource_name: String = field("0+")
    name: String = field("0+")
    value: NullableString = field("0+", nullable="0+")


@message(record_type=5, versions="0-2", flexible="0+")
class PartitionChangeRecord:
    partition_id: Int32 = field("0+", default=-1)
    topic_id: Uuid = field("0+")
    isr: NullableArray[Int32] = field("0+", default=None, nullable="0+", tag=0)
    leader: Int32 = field("0+", default=-2, tag=1)
    replicas: NullableArray[Int32] = field("0+", default=None, nullable="0+", tag=2)
    removing_replicas: NullableArray[Int32] = field("0+", default=None, nullable="0+", tag=3)
    adding_replicas: NullableArray[Int32] = field("0+", default=None, nullable="0+", tag=4)
    leader_recovery_state: Int8 = field("0+", default=-1, tag=5)
    directories: NullableArray[Uuid] = field("1+", default=None, nullable="1+", tag=8)
    eligible_leader_replicas: NullableArray[Int32] = field("2+", default=None, nullable="2+", tag=6)
    last_known_elr: NullableArray[Int32] = field("2+", default=None, nullable="2+", tag=7)


@message(record_type=7, versions="0", flexible="0+")
class FenceBrokerRecord:
    id: Int32 = field("0+")
    epoch: Int64 = field("0+")


@message(record_type=8, versions="0", flexible="0+")
class UnfenceBrokerRecord:
    id: Int32 = field("0+")
    epoch: Int64 = field("0+")


@message(record_type=9, versions="0", flexible="0+")
class RemoveTopicRecord:
    topic_id: Uuid = field("0+")


@message(record_type=10, versions="0", flexible="0+")
class DelegationTokenRecord:
    owner: String = field("0+")
    requester: String = field("0+")
    renewers: Array[String] = field("0+", factory=list)
    issue_timestamp: Int64 = field("0+")
    max_timestamp: Int64 = field("0+")
    expiration_timestamp: Int64 = field("0+")
    token_id: String = field("0+")


@message(record_type=11, versions="0", flexible="0+")
class UserScramCredentialRecord:
    name: String = field("0+")
    mechanism: Int8 = field("0+")
    salt: Bytes = field("0+")
    stored_key: Bytes = field("0+")
    server_key: Bytes = field("0+")
    iterations: Int32 = field("0+")


@message(record_type=12, versions="0", flexible="0+")
class FeatureLevelRecord:
    name: String = field("0+")
    feature_level: Int16 = field("0+")


@message(record_type=14, versions="0", flexible="0+")
class ClientQuotaRecord:
    @struct
    class EntityData:
        entity_type: String = field("0+")
        entity_name: NullableString = field("0+", nullable="0+")

    entity: Array[EntityData] = field("0+", factory=list)
    key: String = field("0+")
    value: Float64 = field("0+")
    remove: Bool = field("0+")


@message(record_type=15, versions="0", flexible="0+")
class ProducerIdsRecord:
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)
    next_producer_id: Int64 = field("0+")


@message(record_type=17, versions="0-3", flexible="0+")
class BrokerRegistrationChangeRecord:
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+")
    fenced: Int8 = field("0+", default=0, tag=0)
    in_controlled_shutdown: Int8 = field("1+", default=0, tag=1)
    log_dirs: Array[Uuid] = field("2+", factory=list, tag=2)
    cordoned_log_dirs: NullableArray[Uuid] = field("3+", default=None, nullable="3+", tag=3)


@message(record_type=18, versions="0", flexible="0+")
class AccessControlEntryRecord:
    id: Uuid = field("0+")
    resource_type: Int8 = field("0+")
    resource_name: String = field("0+")
    pattern_type: Int8 = field("0+")
    principal: String = field("0+")
    host: String = field("0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


@message(record_type=19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord:
    id: Uuid = field("0+")


@message(record_type=20, versions="0", flexible="0+")
class NoOpRecord:
    """Metadata record type 20."""


@message(record_type=21, versions="0", flexible="0+")
class ZkMigrationStateRecord:
    zk_migration_state: Int8 = field("0+")


@message(record_type=22, versions="0", flexible="0+")
class RemoveUserScramCredentialRecord:
    name: String = field("0+")
    mechanism: Int8 = field("0+")


@message(record_type=23, versions="0", flexible="0+")
class BeginTransactionRecord:
    name: NullableString = field("0+", default=None, nullable="0+", tag=0)


@message(record_type=24, versions="0", flexible="0+")
class EndTransactionRecord:
    """Metadata record type 24."""


@message(record_type=25, versions="0", flexible="0+")
class AbortTransactionRecord:
    reason: NullableString = field("0+", default=None, nullable="0+", tag=0)


@message(record_type=26, versions="0", flexible="0+")
class RemoveDelegationTokenRecord:
    token_id: String = field("0+")


@message(record_type=27, versions="0", flexible="0+")
class RegisterControllerRecord:
    controller_id: Int32 = field("0+")
    incarnation_id: Uuid = field("0+")
    zk_migration_ready: Bool = field("0+")

    @struct
    class ControllerEndpoint:
        name: String = field("0+")
        host: String = field("0+")
        port: UInt16 = field("0+")
        security_protocol: Int16 = field("0+")

    end_points: Array[ControllerEndpoint] = field("0+", factory=list)

    @struct
    class ControllerFeature:
        name: String = field("0+")
        min_supported_version: Int16 = field("0+")
        max_supported_version: Int16 = field("0+")

    features: Array[ControllerFeature] = field("0+", factory=list)


@message(record_type=28, versions="0", flexible="0+")
class ClearElrRecord:
    topic_name: String = field("0+")


@message(record_type=29, versions="0", flexible="0+")
class UnregisterControllerRecord:
    controller_id: Int32 = field("0+")


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | RemoveTopicRecord
    | DelegationTokenRecord
    | UserScramCredentialRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | ZkMigrationStateRecord
    | RemoveUserScramCredentialRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RemoveDelegationTokenRecord
    | RegisterControllerRecord
    | ClearElrRecord
    | UnregisterControllerRecord
)
"""Any record of the metadata log."""
