"""DescribeConfigs (API key 32): its request and its response."""

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
    field,
    message,
    struct,
)


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    @struct
    class DescribeConfigsResource:
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        configuration_keys: NullableArray[String] = field("0+", factory=list, nullable="0+")

    resources: Array[DescribeConfigsResource] = field("0+", factory=list)
    include_synonyms: Bool = field("1+", default=False)
    include_documentation: Bool = field("3+", default=False)


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class DescribeConfigsResult:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")

        @struct
        class DescribeConfigsResourceResult:
            name: String = field("0+")
            value: NullableString = field("0+", nullable="0+")
            read_only: Bool = field("0+")
            config_source: Int8 = field("1+", default=-1, ignorable=True)
            is_sensitive: Bool = field("0+")

            @struct
            class DescribeConfigsSynonym:
                name: String = field("1+")
                value: NullableString = field("1+", nullable="0+")
                source: Int8 = field("1+")

            synonyms: Array[DescribeConfigsSynonym] = field("1+", factory=list, ignorable=True)
            config_type: Int8 = field("3+", default=0, ignorable=True)
            documentation: NullableString = field("3+", default="", nullable="0+", ignorable=True)

        configs: Array[DescribeConfigsResourceResult] = field("0+", factory=list)

    results: Array[DescribeConfigsResult] = field("0+", factory=list)
