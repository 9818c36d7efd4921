"""CreateDelegationToken (API key 38): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bytes,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest(Request["CreateDelegationTokenResponse"]):
    owner_principal_type: NullableString = field("3+", default="", nullable="3+")
    owner_principal_name: NullableString = field("3+", default="", nullable="3+")

    @struct
    class CreatableRenewers:
        principal_type: String = field("0+")
        principal_name: String = field("0+")

    renewers: Array[CreatableRenewers] = field("0+", factory=list)
    max_lifetime_ms: Int64 = field("0+")


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    error_code: Int16 = field("0+", default=0)
    principal_type: String = field("0+")
    principal_name: String = field("0+")
    token_requester_principal_type: String = field("3+", default="")
    token_requester_principal_name: String = field("3+", default="")
    issue_timestamp_ms: Int64 = field("0+")
    expiry_timestamp_ms: Int64 = field("0+")
    max_timestamp_ms: Int64 = field("0+")
    token_id: String = field("0+")
    hmac: Bytes = field("0+")
    throttle_time_ms: Int32 = field("0+", default=0)
