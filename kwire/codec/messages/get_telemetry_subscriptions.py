"""GetTelemetrySubscriptions (API key 71): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Request,
    String,
    Uuid,
    field,
    message,
)


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest(Request["GetTelemetrySubscriptionsResponse"]):
    client_instance_id: Uuid = field("0+")


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    client_instance_id: Uuid = field("0+")
    subscription_id: Int32 = field("0+")
    accepted_compression_types: Array[Int8] = field("0+", factory=list)
    push_interval_ms: Int32 = field("0+")
    telemetry_max_bytes: Int32 = field("0+")
    delta_temporality: Bool = field("0+")
    requested_metrics: Array[String] = field("0+", factory=list)
