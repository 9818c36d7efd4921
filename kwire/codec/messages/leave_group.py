"""LeaveGroup (API key 13): its request and its response."""

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


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    group_id: String = field("0+")
    member_id: String = field("0-2", default="")

    @struct
    class MemberIdentity:
        member_id: String = field("3+", default="")
        group_instance_id: NullableString = field("3+", default=None, nullable="3+")
        reason: NullableString = field("5+", default=None, nullable="5+", ignorable=True)

    members: Array[MemberIdentity] = field("3+", factory=list)


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = field("0+", default=0)

    @struct
    class MemberResponse:
        member_id: String = field("3+", default="")
        group_instance_id: NullableString = field("3+", default="", nullable="3+")
        error_code: Int16 = field("3+", default=0)

    members: Array[MemberResponse] = field("3+", factory=list)


def widen_request(request: LeaveGroupRequest, version: int) -> LeaveGroupRequest:
    """Turn the single member of versions before 3 into a list."""
    if version < 3:
        request.members = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        request.member_id = ""
    return request


def narrow_response(
    response: LeaveGroupResponse, version: int, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    """Before version 3, report the only member's error as the response's own, unless it has one."""
    if version < 3 and response.members:
        response.error_code = response.error_code or response.members[0].error_code
        response.members = []
    return response
