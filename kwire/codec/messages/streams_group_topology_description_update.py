"""StreamsGroupTopologyDescriptionUpdate (API key 93): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@struct
class TopologyDescriptionNode:
    name: String = field("0+")
    node_type: Int8 = field("0+")
    source_topics: Array[String] = field("0+", factory=list)
    sink_topic: NullableString = field("0+", default=None, nullable="0+")
    stores: Array[String] = field("0+", factory=list)
    successors: Array[String] = field("0+", factory=list)


@struct
class TopologyDescriptionSubtopology:
    subtopology_id: String = field("0+")
    nodes: Array[TopologyDescriptionNode] = field("0+", factory=list)


@struct
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode = field("0+")
    processor: TopologyDescriptionNode = field("0+")


@struct
class TopologyDescription:
    subtopologies: Array[TopologyDescriptionSubtopology] = field("0+", factory=list)
    global_stores: Array[TopologyDescriptionGlobalStore] = field("0+", factory=list)


@message(api_key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateRequest(
    Request["StreamsGroupTopologyDescriptionUpdateResponse"]
):
    group_id: String = field("0+")
    member_id: String = field("0+")
    topology_epoch: Int32 = field("0+")
    topology_description: TopologyDescription = field("0+")


@message(api_key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
