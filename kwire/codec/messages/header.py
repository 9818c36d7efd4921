"""The headers of requests and responses."""

from kwire.codec.schema import Int16, Int32, NullableString, field, message


@message(versions="1-2", flexible="2+")
class RequestHeader:
    """The header before the body of every request.

    Version 2 is flexible.
    """

    request_api_key: Int16 = field("0+")
    request_api_version: Int16 = field("0+")
    correlation_id: Int32 = field("0+")
    client_id: NullableString = field("1+", nullable="1+", compact=False)


@message(versions="0-1", flexible="1+")
class ResponseHeader:
    """The header before the body of every response.

    Version 1 is flexible.
    """

    correlation_id: Int32 = field("0+")
