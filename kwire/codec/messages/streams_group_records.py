"""Records of `__consumer_offsets` for streams groups (KIP-1071)."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Nullable,
    NullableArray,
    NullableString,
    String,
    UInt16,
    field,
    message,
    struct,
)


@message(record_type=17, versions="0")
class StreamsGroupMetadataKey:
    group_id: String = field("0")


@struct
class LastAssignmentConfig:
    key: String = field("0+")
    value: String = field("0+")


@message(record_type=17, versions="0", flexible="0+")
class StreamsGroupMetadataValue:
    epoch: Int32 = field("0+")
    metadata_hash: Int64 = field("0+")
    validated_topology_epoch: Int32 = field("0+", default=-1, tag=0)
    last_assignment_configs: NullableArray[LastAssignmentConfig] = field(
        "0+", factory=list, nullable="0+", tag=1
    )
    stored_description_topology_epoch: Int32 = field("0+", default=-1, tag=2)
    failed_description_topology_epoch: Int32 = field("0+", default=-1, tag=3)


@message(record_type=19, versions="0")
class StreamsGroupMemberMetadataKey:
    group_id: String = field("0")
    member_id: String = field("0")


@struct
class Endpoint:
    host: String = field("0+")
    port: UInt16 = field("0+")


@struct
class KeyValue:
    key: String = field("0+")
    value: String = field("0+")


@message(record_type=19, versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    instance_id: NullableString = field("0+", nullable="0+")
    rack_id: NullableString = field("0+", nullable="0+")
    client_id: String = field("0+")
    client_host: String = field("0+")
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    topology_epoch: Int32 = field("0+")
    process_id: String = field("0+")
    user_endpoint: Nullable[Endpoint] = field("0+", default=None, nullable="0+")
    client_tags: Array[KeyValue] = field("0+", factory=list)


@message(record_type=20, versions="0")
class StreamsGroupTargetAssignmentMetadataKey:
    group_id: String = field("0")


@message(record_type=20, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = field("0+")
    assignment_timestamp: Int64 = field("0+", default=0, tag=0, ignorable=True)


@message(record_type=21, versions="0")
class StreamsGroupTargetAssignmentMemberKey:
    group_id: String = field("0")
    member_id: String = field("0")


@struct
class TaskIds:
    subtopology_id: String = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@message(record_type=21, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    active_tasks: Array[TaskIds] = field("0+", factory=list)
    standby_tasks: Array[TaskIds] = field("0+", factory=list)
    warmup_tasks: Array[TaskIds] = field("0+", factory=list)


@message(record_type=22, versions="0")
class StreamsGroupCurrentMemberAssignmentKey:
    group_id: String = field("0")
    member_id: String = field("0")


@struct
class StreamsGroupCurrentMemberAssignmentTaskIds:
    subtopology_id: String = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)
    assignment_epochs: NullableArray[Int32] = field("0+", factory=list, nullable="0+", tag=0)


@message(record_type=22, versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = field("0+")
    previous_member_epoch: Int32 = field("0+")
    state: Int8 = field("0+")
    active_tasks: Array[StreamsGroupCurrentMemberAssignmentTaskIds] = field("0+", factory=list)
    standby_tasks: Array[StreamsGroupCurrentMemberAssignmentTaskIds] = field("0+", factory=list)
    warmup_tasks: Array[StreamsGroupCurrentMemberAssignmentTaskIds] = field("0+", factory=list)
    active_tasks_pending_revocation: Array[StreamsGroupCurrentMemberAssignmentTaskIds] = field(
        "0+", factory=list
    )
    standby_tasks_pending_revocation: Array[StreamsGroupCurrentMemberAssignmentTaskIds] = field(
        "0+", factory=list
    )
    warmup_tasks_pending_revocation: Array[StreamsGroupCurrentMemberAssignmentTaskIds] = field(
        "0+", factory=list
    )


@message(record_type=23, versions="0")
class StreamsGroupTopologyKey:
    group_id: String = field("0")


@struct
class TopicConfig:
    key: String = field("0+")
    value: String = field("0+")


@struct
class TopicInfo:
    name: String = field("0+")
    partitions: Int32 = field("0+")
    replication_factor: Int16 = field("0+")
    topic_configs: Array[TopicConfig] = field("0+", factory=list)


@message(record_type=23, versions="0", flexible="0+")
class StreamsGroupTopologyValue:
    epoch: Int32 = field("0+")

    @struct
    class Subtopology:
        subtopology_id: String = field("0+")
        source_topics: Array[String] = field("0+", factory=list)
        source_topic_regex: Array[String] = field("0+", factory=list)
        state_changelog_topics: Array[TopicInfo] = field("0+", factory=list)
        repartition_sink_topics: Array[String] = field("0+", factory=list)
        repartition_source_topics: Array[TopicInfo] = field("0+", factory=list)

        @struct
        class CopartitionGroup:
            source_topics: Array[Int16] = field("0+", factory=list)
            source_topic_regex: Array[Int16] = field("0+", factory=list)
            repartition_source_topics: Array[Int16] = field("0+", factory=list)

        copartition_groups: Array[CopartitionGroup] = field("0+", factory=list)

    subtopologies: Array[Subtopology] = field("0+", factory=list)
