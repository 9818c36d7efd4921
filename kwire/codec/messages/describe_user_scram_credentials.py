"""DescribeUserScramCredentials (API key 50): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    NullableArray,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest(Request["DescribeUserScramCredentialsResponse"]):
    @struct
    class UserName:
        name: String = field("0+")

    users: NullableArray[UserName] = field("0+", factory=list, nullable="0+")


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class DescribeUserScramCredentialsResult:
        user: String = field("0+")
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

        @struct
        class CredentialInfo:
            mechanism: Int8 = field("0+")
            iterations: Int32 = field("0+")

        credential_infos: Array[CredentialInfo] = field("0+", factory=list)

    results: Array[DescribeUserScramCredentialsResult] = field("0+", factory=list)
