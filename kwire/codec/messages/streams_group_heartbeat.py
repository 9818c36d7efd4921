"""StreamsGroupHeartbeat (API key 88): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Nullable,
    NullableArray,
    NullableString,
    Request,
    String,
    UInt16,
    field,
    message,
    struct,
)


@struct
class KeyValue:
    key: String = field("0+")
    value: String = field("0+")


@struct
class TopicInfo:
    name: String = field("0+")
    partitions: Int32 = field("0+")
    replication_factor: Int16 = field("0+")
    topic_configs: Array[KeyValue] = field("0+", factory=list)


@struct
class Endpoint:
    host: String = field("0+")
    port: UInt16 = field("0+")


@struct
class TaskOffset:
    subtopology_id: String = field("0+")
    partition: Int32 = field("0+")
    offset: Int64 = field("0+")


@struct
class TaskIds:
    subtopology_id: String = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@message(api_key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatRequest(Request["StreamsGroupHeartbeatResponse"]):
    group_id: String = field("0+")
    member_id: String = field("0+")
    member_epoch: Int32 = field("0+")
    endpoint_information_epoch: Int32 = field("0+")
    instance_id: NullableString = field("0+", default=None, nullable="0+")
    rack_id: NullableString = field("0+", default=None, nullable="0+")
    rebalance_timeout_ms: Int32 = field("0+", default=-1)

    @struct
    class Topology:
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

    topology: Nullable[Topology] = field("0+", default=None, nullable="0+")
    active_tasks: NullableArray[TaskIds] = field("0+", default=None, nullable="0+")
    standby_tasks: NullableArray[TaskIds] = field("0+", default=None, nullable="0+")
    warmup_tasks: NullableArray[TaskIds] = field("0+", default=None, nullable="0+")
    process_id: NullableString = field("0+", default=None, nullable="0+")
    user_endpoint: Nullable[Endpoint] = field("0+", default=None, nullable="0+")
    client_tags: NullableArray[KeyValue] = field("0+", default=None, nullable="0+")
    task_offsets: NullableArray[TaskOffset] = field("0+", default=None, nullable="0+")
    task_end_offsets: NullableArray[TaskOffset] = field("0+", default=None, nullable="0+")
    shutdown_application: Bool = field("0+", default=False)


@struct
class Status:
    status_code: Int8 = field("0+")
    status_detail: String = field("0+")


@struct
class TopicPartition:
    topic: String = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@message(api_key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
    member_id: String = field("0+")
    member_epoch: Int32 = field("0+")
    heartbeat_interval_ms: Int32 = field("0+")
    acceptable_recovery_lag: Int32 = field("0", default=0)
    task_offset_interval_ms: Int32 = field("0+")
    acceptable_recovery_lag_offsets: Int64 = field("1+", default=-1, ignorable=True)
    status: NullableArray[Status] = field("0+", factory=list, nullable="0+")
    active_tasks: NullableArray[TaskIds] = field("0+", default=None, nullable="0+")
    standby_tasks: NullableArray[TaskIds] = field("0+", default=None, nullable="0+")
    warmup_tasks: NullableArray[TaskIds] = field("0+", default=None, nullable="0+")
    topology_description_required: Bool = field("1+", default=False)
    endpoint_information_epoch: Int32 = field("0+")

    @struct
    class EndpointToPartitions:
        user_endpoint: Endpoint = field("0+")
        active_partitions: Array[TopicPartition] = field("0+", factory=list)
        standby_partitions: Array[TopicPartition] = field("0+", factory=list)

    partitions_by_user_endpoint: NullableArray[EndpointToPartitions] = field(
        "0+", default=None, nullable="0+"
    )
