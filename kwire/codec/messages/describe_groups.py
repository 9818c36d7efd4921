"""DescribeGroups (API key 15): its request and its response."""

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
from kwire.errors import GroupIdNotFound

UNASKED = -2147483648
"""The value of authorized operations if the request did not ask for them."""


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    groups: Array[String] = field("0+", factory=list)
    include_authorized_operations: Bool = field("3+", default=False)


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)

    @struct
    class DescribedGroup:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("6+", default=None, nullable="6+")
        group_id: String = field("0+")
        group_state: String = field("0+")
        protocol_type: String = field("0+")
        protocol_data: String = field("0+")

        @struct
        class DescribedGroupMember:
            member_id: String = field("0+")
            group_instance_id: NullableString = field(
                "4+", default=None, nullable="4+", ignorable=True
            )
            client_id: String = field("0+")
            client_host: String = field("0+")
            member_metadata: Bytes = field("0+")
            member_assignment: Bytes = field("0+")

        members: Array[DescribedGroupMember] = field("0+", factory=list)
        authorized_operations: Int32 = field("3+", default=UNASKED)

    groups: Array[DescribedGroup] = field("0+", factory=list)


def narrow_response(
    response: DescribeGroupsResponse, version: int, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Before version 6, report a group that does not exist as dead, without an error."""
    for group in response.groups:
        if group.error_code == GroupIdNotFound.code and version < 6:
            group.error_code, group.error_message, group.group_state = 0, None, "Dead"
        elif group.error_code == GroupIdNotFound.code:
            group.authorized_operations = UNASKED
    return response
