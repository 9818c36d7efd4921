"""RenewDelegationToken (API key 39): its request and its response."""

from kwire.codec.schema import Bytes, Int16, Int32, Int64, Request, field, message


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest(Request["RenewDelegationTokenResponse"]):
    hmac: Bytes = field("0+")
    renew_period_ms: Int64 = field("0+")


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    error_code: Int16 = field("0+", default=0)
    expiry_timestamp_ms: Int64 = field("0+")
    throttle_time_ms: Int32 = field("0+", default=0)
