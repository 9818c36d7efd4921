"""Heartbeat (API key 12): its request and its response."""

from kwire.codec.schema import Int16, Int32, NullableString, Request, String, field, message


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest(Request["HeartbeatResponse"]):
    group_id: String = field("0+")
    generation_id: Int32 = field("0+")
    member_id: String = field("0+")
    group_instance_id: NullableString = field("3+", default=None, nullable="3+")


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = field("0+", default=0)
