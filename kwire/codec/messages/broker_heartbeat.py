"""BrokerHeartbeat (API key 63): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    NullableArray,
    Request,
    Uuid,
    field,
    message,
)


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatRequest(Request["BrokerHeartbeatResponse"]):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)
    current_metadata_offset: Int64 = field("0+")
    want_fence: Bool = field("0+")
    want_shut_down: Bool = field("0+")
    offline_log_dirs: Array[Uuid] = field("1+", factory=list, tag=0)
    cordoned_log_dirs: NullableArray[Uuid] = field("2+", default=None, nullable="2+", tag=1)


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    is_caught_up: Bool = field("0+", default=False)
    is_fenced: Bool = field("0+", default=True)
    should_shut_down: Bool = field("0+")
