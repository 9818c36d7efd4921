"""StreamsGroupDescribe (API key 89): its request and its response."""

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


@message(api_key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeRequest(Request["StreamsGroupDescribeResponse"]):
    group_ids: Array[String] = field("0+", factory=list)
    include_authorized_operations: Bool = field("0+")
    include_topology_description: Bool = field("1+", default=False)


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


@struct
class Assignment:
    active_tasks: Array[TaskIds] = field("0+", factory=list)
    standby_tasks: Array[TaskIds] = field("0+", factory=list)
    warmup_tasks: Array[TaskIds] = field("0+", factory=list)


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
class TopologyDescriptionNode:
    name: String = field("1+", default="")
    node_type: Int8 = field("1+", default=0)
    source_topics: Array[String] = field("1+", factory=list)
    sink_topic: NullableString = field("1+", default=None, nullable="1+")
    stores: Array[String] = field("1+", factory=list)
    successors: Array[String] = field("1+", factory=list)


@struct
class TopologyDescriptionSubtopology:
    subtopology_id: String = field("1+", default="")
    nodes: Array[TopologyDescriptionNode] = field("1+", factory=list)


@struct
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode = field("1+", factory=TopologyDescriptionNode)
    processor: TopologyDescriptionNode = field("1+", factory=TopologyDescriptionNode)


@struct
class TopologyDescription:
    subtopologies: Array[TopologyDescriptionSubtopology] = field("1+", factory=list)
    global_stores: Array[TopologyDescriptionGlobalStore] = field("1+", factory=list)


@message(api_key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class DescribedGroup:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")
        group_id: String = field("0+")
        group_state: String = field("0+")
        group_epoch: Int32 = field("0+")
        assignment_epoch: Int32 = field("0+")

        @struct
        class Topology:
            epoch: Int32 = field("0+")

            @struct
            class Subtopology:
                subtopology_id: String = field("0+")
                source_topics: Array[String] = field("0+", factory=list)
                repartition_sink_topics: Array[String] = field("0+", factory=list)
                state_changelog_topics: Array[TopicInfo] = field("0+", factory=list)
                repartition_source_topics: Array[TopicInfo] = field("0+", factory=list)

            subtopologies: NullableArray[Subtopology] = field("0+", default=None, nullable="0+")

        topology: Nullable[Topology] = field("0+", default=None, nullable="0+")

        @struct
        class Member:
            member_id: String = field("0+")
            member_epoch: Int32 = field("0+")
            instance_id: NullableString = field("0+", default=None, nullable="0+")
            rack_id: NullableString = field("0+", default=None, nullable="0+")
            client_id: String = field("0+")
            client_host: String = field("0+")
            topology_epoch: Int32 = field("0+")
            process_id: String = field("0+")
            user_endpoint: Nullable[Endpoint] = field("0+", default=None, nullable="0+")
            client_tags: Array[KeyValue] = field("0+", factory=list)
            task_offsets: Array[TaskOffset] = field("0+", factory=list)
            task_end_offsets: Array[TaskOffset] = field("0+", factory=list)
            assignment: Assignment = field("0+")
            target_assignment: Assignment = field("0+")
            is_classic: Bool = field("0+")

        members: Array[Member] = field("0+", factory=list)
        authorized_operations: Int32 = field("0+", default=-2147483648)
        topology_description: Nullable[TopologyDescription] = field(
            "1+", default=None, nullable="1+"
        )
        topology_description_status: Int8 = field("1+", default=0)
        assignor_name: NullableString = field("1+", default=None, nullable="1+", ignorable=True)

    groups: Array[DescribedGroup] = field("0+", factory=list)
