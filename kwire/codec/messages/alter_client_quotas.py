"""AlterClientQuotas (API key 49): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Float64,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"]):
    @struct
    class EntryData:
        @struct
        class EntityData:
            entity_type: String = field("0+")
            entity_name: NullableString = field("0+", nullable="0+")

        entity: Array[EntityData] = field("0+", factory=list)

        @struct
        class OpData:
            key: String = field("0+")
            value: Float64 = field("0+")
            remove: Bool = field("0+")

        ops: Array[OpData] = field("0+", factory=list)

    entries: Array[EntryData] = field("0+", factory=list)
    validate_only: Bool = field("0+")


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class EntryData:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

        @struct
        class EntityData:
            entity_type: String = field("0+")
            entity_name: NullableString = field("0+", nullable="0+")

        entity: Array[EntityData] = field("0+", factory=list)

    entries: Array[EntryData] = field("0+", factory=list)
