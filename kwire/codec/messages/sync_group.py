"""SyncGroup (API key 14): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Bytes,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest(Request["SyncGroupResponse"]):
    group_id: String = field("0+")
    generation_id: Int32 = field("0+")
    member_id: String = field("0+")
    group_instance_id: NullableString = field("3+", default=None, nullable="3+")
    protocol_type: NullableString = field("5+", default=None, nullable="5+", ignorable=True)
    protocol_name: NullableString = field("5+", default=None, nullable="5+", ignorable=True)
    must_name_protocol: Bool = field("", default=False, ignorable=True)
    """True if the request must name the protocol."""

    @struct
    class SyncGroupRequestAssignment:
        member_id: String = field("0+")
        assignment: Bytes = field("0+")

    assignments: Array[SyncGroupRequestAssignment] = field("0+", factory=list)


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = field("0+", default=0)
    protocol_type: NullableString = field("5+", default=None, nullable="5+", ignorable=True)
    protocol_name: NullableString = field("5+", default=None, nullable="5+", ignorable=True)
    assignment: Bytes = field("0+")


def widen_request(request: SyncGroupRequest, version: int) -> SyncGroupRequest:
    """Require the protocol's type and name from version 5 onwards."""
    request.must_name_protocol = version >= 5
    return request
