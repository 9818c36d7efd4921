"""RemoveRaftVoter (API key 81): its request and its response."""

from kwire.codec.schema import Int16, Int32, NullableString, Request, Uuid, field, message


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest(Request["RemoveRaftVoterResponse"]):
    cluster_id: NullableString = field("0+", nullable="0+")
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("0+")


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+", ignorable=True)
