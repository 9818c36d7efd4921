"""AssignReplicasToDirs (API key 73): its request and its response."""

from kwire.codec.schema import Array, Int16, Int32, Int64, Request, Uuid, field, message, struct


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest(Request["AssignReplicasToDirsResponse"]):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)

    @struct
    class DirectoryData:
        id: Uuid = field("0+")

        @struct
        class TopicData:
            topic_id: Uuid = field("0+")

            @struct
            class PartitionData:
                partition_index: Int32 = field("0+")

            partitions: Array[PartitionData] = field("0+", factory=list)

        topics: Array[TopicData] = field("0+", factory=list)

    directories: Array[DirectoryData] = field("0+", factory=list)


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)

    @struct
    class DirectoryData:
        id: Uuid = field("0+")

        @struct
        class TopicData:
            topic_id: Uuid = field("0+")

            @struct
            class PartitionData:
                partition_index: Int32 = field("0+")
                error_code: Int16 = field("0+", default=0)

            partitions: Array[PartitionData] = field("0+", factory=list)

        topics: Array[TopicData] = field("0+", factory=list)

    directories: Array[DirectoryData] = field("0+", factory=list)
