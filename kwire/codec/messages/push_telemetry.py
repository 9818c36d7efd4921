"""PushTelemetry (API key 72): its request and its response."""

from kwire.codec.schema import Bool, Bytes, Int8, Int16, Int32, Request, Uuid, field, message


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryRequest(Request["PushTelemetryResponse"]):
    client_instance_id: Uuid = field("0+")
    subscription_id: Int32 = field("0+")
    terminating: Bool = field("0+")
    compression_type: Int8 = field("0+")
    metrics: Bytes = field("0+")


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
