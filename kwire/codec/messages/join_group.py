"""JoinGroup (API key 11): its request and its response."""

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


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest(Request["JoinGroupResponse"]):
    group_id: String = field("0+")
    session_timeout_ms: Int32 = field("0+")
    rebalance_timeout_ms: Int32 = field("1+", default=-1, ignorable=True)
    member_id: String = field("0+")
    group_instance_id: NullableString = field("5+", default=None, nullable="5+")
    protocol_type: String = field("0+")

    @struct
    class JoinGroupRequestProtocol:
        name: String = field("0+")
        metadata: Bytes = field("0+")

    protocols: Array[JoinGroupRequestProtocol] = field("0+", factory=list)
    reason: NullableString = field("8+", default=None, nullable="8+", ignorable=True)
    knows_member_id_required: Bool = field("", default=True, ignorable=True)
    """True if the client can rejoin with the member id that it receives (KIP-394)."""
    can_skip_assignment: Bool = field("", default=True, ignorable=True)
    """True if the response may let the group's leader skip the assignment (KIP-814)."""


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    throttle_time_ms: Int32 = field("2+", default=0, ignorable=True)
    error_code: Int16 = field("0+", default=0)
    generation_id: Int32 = field("0+", default=-1)
    protocol_type: NullableString = field("7+", default=None, nullable="7+", ignorable=True)
    protocol_name: NullableString = field("0+", nullable="7+")
    leader: String = field("0+")
    skip_assignment: Bool = field("9+", default=False)
    member_id: String = field("0+")

    @struct
    class JoinGroupResponseMember:
        member_id: String = field("0+")
        group_instance_id: NullableString = field("5+", default=None, nullable="5+", ignorable=True)
        metadata: Bytes = field("0+")

    members: Array[JoinGroupResponseMember] = field("0+", factory=list)


def widen_request(request: JoinGroupRequest, version: int) -> JoinGroupRequest:
    """Set the client's abilities by its version; in version 0 also the rebalance timeout."""
    request.knows_member_id_required = version >= 4
    request.can_skip_assignment = version >= 9
    if version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    return request


def narrow_response(
    response: JoinGroupResponse, version: int, request: JoinGroupRequest
) -> JoinGroupResponse:
    """Before version 7, replace a null protocol name by an empty one."""
    if version < 7:
        response.protocol_name = response.protocol_name or ""
    return response
