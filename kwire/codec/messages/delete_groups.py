"""DeleteGroups (API key 42): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    groups_names: Array[String] = field("0+", factory=list)


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class DeletableGroupResult:
        group_id: String = field("0+")
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("3+", default=None, nullable="3+", ignorable=True)

    results: Array[DeletableGroupResult] = field("0+", factory=list)
