"""Envelope (API key 58): its request and its response."""

from kwire.codec.schema import Bytes, Int16, NullableBytes, Request, field, message


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeRequest(Request["EnvelopeResponse"]):
    request_data: Bytes = field("0+")
    request_principal: NullableBytes = field("0+", nullable="0+")
    client_host_address: Bytes = field("0+")


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeResponse:
    response_data: NullableBytes = field("0+", default=None, nullable="0+")
    error_code: Int16 = field("0+", default=0)
