"""ListGroups (API key 16): its request and its response."""

from kwire.codec.schema import Array, Int16, Int32, Request, String, field, message, struct


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest(Request["ListGroupsResponse"]):
    states_filter: Array[String] = field("4+", factory=list)
    types_filter: Array[String] = field("5+", factory=list)


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = field("0+", default=0)

    @struct
    class ListedGroup:
        group_id: String = field("0+")
        protocol_type: String = field("0+")
        group_state: String = field("4+", default="", ignorable=True)
        group_type: String = field("5+", default="", ignorable=True)

    groups: Array[ListedGroup] = field("0+", factory=list)
