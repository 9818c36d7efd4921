"""IncrementalAlterConfigs (API key 44): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
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


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    @struct
    class AlterConfigsResource:
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")

        @struct
        class AlterableConfig:
            name: String = field("0+")
            config_operation: Int8 = field("0+")
            value: NullableString = field("0+", nullable="0+")

        configs: Array[AlterableConfig] = field("0+", factory=list)

    resources: Array[AlterConfigsResource] = field("0+", factory=list)
    validate_only: Bool = field("0+")


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class AlterConfigsResourceResponse:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")

    responses: Array[AlterConfigsResourceResponse] = field("0+", factory=list)
