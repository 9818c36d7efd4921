"""UnregisterBroker (API key 64): its request and its response."""

from kwire.codec.schema import Int16, Int32, NullableString, Request, field, message


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"]):
    broker_id: Int32 = field("0+")


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
