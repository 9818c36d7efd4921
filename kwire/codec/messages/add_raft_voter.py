"""AddRaftVoter (API key 80): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    UInt16,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest(Request["AddRaftVoterResponse"]):
    cluster_id: NullableString = field("0+", nullable="0+")
    timeout_ms: Int32 = field("0+")
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("0+")

    @struct
    class Listener:
        name: String = field("0+")
        host: String = field("0+")
        port: UInt16 = field("0+")

    listeners: Array[Listener] = field("0+", factory=list)
    ack_when_committed: Bool = field("1+", default=True)


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+", ignorable=True)
