"""AlterReplicaLogDirs (API key 34): its request and its response."""

from kwire.codec.schema import Array, Int16, Int32, Request, String, field, message, struct


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    @struct
    class AlterReplicaLogDir:
        path: String = field("0+")

        @struct
        class AlterReplicaLogDirTopic:
            name: String = field("0+")
            partitions: Array[Int32] = field("0+", factory=list)

        topics: Array[AlterReplicaLogDirTopic] = field("0+", factory=list)

    dirs: Array[AlterReplicaLogDir] = field("0+", factory=list)


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class AlterReplicaLogDirTopicResult:
        topic_name: String = field("0+")

        @struct
        class AlterReplicaLogDirPartitionResult:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)

        partitions: Array[AlterReplicaLogDirPartitionResult] = field("0+", factory=list)

    results: Array[AlterReplicaLogDirTopicResult] = field("0+", factory=list)
