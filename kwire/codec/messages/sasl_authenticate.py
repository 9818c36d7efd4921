"""SaslAuthenticate (API key 36): its request and its response."""

from kwire.codec.schema import Bytes, Int16, Int64, NullableString, Request, field, message


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    auth_bytes: Bytes = field("0+")


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
    auth_bytes: Bytes = field("0+")
    session_lifetime_ms: Int64 = field("1+", default=0, ignorable=True)
