"""GetTelemetrySubscriptions (API key 71): which metrics a client pushes, and how often.

kwire asks for cumulative sums, because Prometheus stores such sums; then a lost push loses no data.
"""

from typing import Final

from kwire.codec.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.telemetry_requests import client_of, receiver_of
from kwire.records.compression import GZIP, LZ4, SNAPPY, ZSTD
from kwire.types import ZERO_UUID

_CODECS: Final = (ZSTD, LZ4, GZIP, SNAPPY)
"""The codecs in the order in which clients prefer them."""


_REFUSED: Final = {
    "client_instance_id": ZERO_UUID,
    "subscription_id": 0,
    "push_interval_ms": 0,
    "telemetry_max_bytes": 0,
    "delta_temporality": False,
}


@handles(GetTelemetrySubscriptionsRequest, refused=_REFUSED)
async def get_telemetry_subscriptions(
    context: Context, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    receiver = receiver_of(context)
    instance_id, assigned = await receiver.subscription(
        client_of(context), request.client_instance_id
    )
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=assigned.subscription_id,
        accepted_compression_types=list(_CODECS),
        push_interval_ms=assigned.interval_ms,
        telemetry_max_bytes=receiver.max_bytes,
        delta_temporality=False,
        requested_metrics=assigned.metrics,
    )
