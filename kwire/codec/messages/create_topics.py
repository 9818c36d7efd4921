"""CreateTopics (API key 19): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
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
from kwire.types import ZERO_UUID


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    @struct
    class CreatableTopic:
        name: String = field("0+")
        num_partitions: Int32 = field("0+")
        replication_factor: Int16 = field("0+")

        @struct
        class CreatableReplicaAssignment:
            partition_index: Int32 = field("0+")
            broker_ids: Array[Int32] = field("0+", factory=list)

        assignments: Array[CreatableReplicaAssignment] = field("0+", factory=list)

        @struct
        class CreatableTopicConfig:
            name: String = field("0+")
            value: NullableString = field("0+", nullable="0+")

        configs: Array[CreatableTopicConfig] = field("0+", factory=list)

    topics: Array[CreatableTopic] = field("0+", factory=list)
    timeout_ms: Int32 = field("0+", default=60000)
    validate_only: Bool = field("1+", default=False)


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: Int32 = field("2+", default=0, ignorable=True)

    @struct
    class CreatableTopicResult:
        name: String = field("0+")
        topic_id: Uuid = field("7+", default=ZERO_UUID, ignorable=True)
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("1+", default=None, nullable="0+", ignorable=True)
        topic_config_error_code: Int16 = field("5+", default=0, tag=0, ignorable=True)
        num_partitions: Int32 = field("5+", default=-1, ignorable=True)
        replication_factor: Int16 = field("5+", default=-1, ignorable=True)

        @struct
        class CreatableTopicConfigs:
            name: String = field("5+", default="")
            value: NullableString = field("5+", default="", nullable="5+")
            read_only: Bool = field("5+", default=False)
            config_source: Int8 = field("5+", default=-1, ignorable=True)
            is_sensitive: Bool = field("5+", default=False)

        configs: NullableArray[CreatableTopicConfigs] = field(
            "5+", factory=list, nullable="5+", ignorable=True
        )

    topics: Array[CreatableTopicResult] = field("0+", factory=list)
