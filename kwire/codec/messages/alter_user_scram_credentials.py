"""AlterUserScramCredentials (API key 51): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bytes,
    Int8,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest(Request["AlterUserScramCredentialsResponse"]):
    @struct
    class ScramCredentialDeletion:
        name: String = field("0+")
        mechanism: Int8 = field("0+")

    deletions: Array[ScramCredentialDeletion] = field("0+", factory=list)

    @struct
    class ScramCredentialUpsertion:
        name: String = field("0+")
        mechanism: Int8 = field("0+")
        iterations: Int32 = field("0+")
        salt: Bytes = field("0+")
        salted_password: Bytes = field("0+")

    upsertions: Array[ScramCredentialUpsertion] = field("0+", factory=list)


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class AlterUserScramCredentialsResult:
        user: String = field("0+")
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

    results: Array[AlterUserScramCredentialsResult] = field("0+", factory=list)
