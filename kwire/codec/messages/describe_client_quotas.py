"""DescribeClientQuotas (API key 48): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Float64,
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


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    @struct
    class ComponentData:
        entity_type: String = field("0+")
        match_type: Int8 = field("0+")
        match: NullableString = field("0+", nullable="0+")

    components: Array[ComponentData] = field("0+", factory=list)
    strict: Bool = field("0+")


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class EntryData:
        @struct
        class EntityData:
            entity_type: String = field("0+")
            entity_name: NullableString = field("0+", nullable="0+")

        entity: Array[EntityData] = field("0+", factory=list)

        @struct
        class ValueData:
            key: String = field("0+")
            value: Float64 = field("0+")

        values: Array[ValueData] = field("0+", factory=list)

    entries: NullableArray[EntryData] = field("0+", factory=list, nullable="0+")
