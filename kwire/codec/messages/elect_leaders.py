"""ElectLeaders (API key 43): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    NullableArray,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    election_type: Int8 = field("1+", default=0)

    @struct
    class TopicPartitions:
        topic: String = field("0+")
        partitions: Array[Int32] = field("0+", factory=list)

    topic_partitions: NullableArray[TopicPartitions] = field("0+", factory=list, nullable="0+")
    timeout_ms: Int32 = field("0+", default=60000)


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("1+", default=0)

    @struct
    class ReplicaElectionResult:
        topic: String = field("0+")

        @struct
        class PartitionResult:
            partition_id: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

        partition_result: Array[PartitionResult] = field("0+", factory=list)

    replica_election_results: Array[ReplicaElectionResult] = field("0+", factory=list)
