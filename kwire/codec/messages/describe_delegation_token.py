"""DescribeDelegationToken (API key 41): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bytes,
    Int16,
    Int32,
    Int64,
    NullableArray,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest(Request["DescribeDelegationTokenResponse"]):
    @struct
    class DescribeDelegationTokenOwner:
        principal_type: String = field("0+")
        principal_name: String = field("0+")

    owners: NullableArray[DescribeDelegationTokenOwner] = field("0+", factory=list, nullable="0+")


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    error_code: Int16 = field("0+", default=0)

    @struct
    class DescribedDelegationToken:
        principal_type: String = field("0+")
        principal_name: String = field("0+")
        token_requester_principal_type: String = field("3+", default="")
        token_requester_principal_name: String = field("3+", default="")
        issue_timestamp: Int64 = field("0+")
        expiry_timestamp: Int64 = field("0+")
        max_timestamp: Int64 = field("0+")
        token_id: String = field("0+")
        hmac: Bytes = field("0+")

        @struct
        class DescribedDelegationTokenRenewer:
            principal_type: String = field("0+")
            principal_name: String = field("0+")

        renewers: Array[DescribedDelegationTokenRenewer] = field("0+", factory=list)

    tokens: Array[DescribedDelegationToken] = field("0+", factory=list)
    throttle_time_ms: Int32 = field("0+", default=0)
