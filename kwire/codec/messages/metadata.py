"""Metadata (API key 3): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    NullableArray,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)
from kwire.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    ListenerNotFound,
    ReplicaNotAvailable,
)
from kwire.types import ZERO_UUID


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest(Request["MetadataResponse"]):
    @struct
    class MetadataRequestTopic:
        topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)
        name: NullableString = field("0+", nullable="10+")

    topics: NullableArray[MetadataRequestTopic] = field("0+", factory=list, nullable="1+")
    allow_auto_topic_creation: Bool = field("4+", default=True)
    include_cluster_authorized_operations: Bool = field("8-10", default=False)
    include_topic_authorized_operations: Bool = field("8+", default=False)
    version: Int16 = field("", default=13, ignorable=True)
    """The version in which the client has sent the request; by default the newest."""


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: Int32 = field("3+", default=0, ignorable=True)

    @struct
    class MetadataResponseBroker:
        node_id: Int32 = field("0+")
        host: String = field("0+")
        port: Int32 = field("0+")
        rack: NullableString = field("1+", default=None, nullable="1+", ignorable=True)

    brokers: Array[MetadataResponseBroker] = field("0+", factory=list)
    cluster_id: NullableString = field("2+", default=None, nullable="2+", ignorable=True)
    controller_id: Int32 = field("1+", default=-1, ignorable=True)

    @struct
    class MetadataResponseTopic:
        error_code: Int16 = field("0+", default=0)
        name: NullableString = field("0+", nullable="12+")
        topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)
        is_internal: Bool = field("1+", default=False, ignorable=True)

        @struct
        class MetadataResponsePartition:
            error_code: Int16 = field("0+", default=0)
            partition_index: Int32 = field("0+")
            leader_id: Int32 = field("0+")
            leader_epoch: Int32 = field("7+", default=-1, ignorable=True)
            replica_nodes: Array[Int32] = field("0+", factory=list)
            isr_nodes: Array[Int32] = field("0+", factory=list)
            offline_replicas: Array[Int32] = field("5+", factory=list, ignorable=True)

        partitions: Array[MetadataResponsePartition] = field("0+", factory=list)
        topic_authorized_operations: Int32 = field("8+", default=-2147483648)

    topics: Array[MetadataResponseTopic] = field("0+", factory=list)
    cluster_authorized_operations: Int32 = field("8-10", default=-2147483648)
    error_code: Int16 = field("13+", default=0, ignorable=True)


def widen_request(request: MetadataRequest, version: int) -> MetadataRequest:
    """Set the version; replace an empty list in version 0, which asks for all topics, by null."""
    request.version = version
    if version == 0 and not request.topics:
        request.topics = None
    return request


def narrow_response(
    response: MetadataResponse, version: int, request: MetadataRequest
) -> MetadataResponse:
    """Adapt a response to older versions.

    Before version 12, a topic without a name becomes an InvalidRequest with an empty name. Before
    version 6, a leader without an address on the client's listener becomes LeaderNotAvailable.
    Version 0 lists only replicas that can be reached.
    """
    if version < 12:
        for topic in response.topics:
            if topic.name is None:
                topic.name, topic.error_code = "", InvalidRequest.code
            if version < 6:
                for partition in topic.partitions:
                    _narrow_partition(partition, version)
    return response


def _narrow_partition(
    partition: MetadataResponse.MetadataResponseTopic.MetadataResponsePartition, version: int
) -> None:
    if partition.error_code == ListenerNotFound.code:
        partition.error_code = LeaderNotAvailable.code
    offline = partition.offline_replicas
    if version == 0 and offline:
        partition.replica_nodes = [node for node in partition.replica_nodes if node not in offline]
        partition.isr_nodes = [node for node in partition.isr_nodes if node not in offline]
        partition.error_code = partition.error_code or ReplicaNotAvailable.code
