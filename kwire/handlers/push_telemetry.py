"""PushTelemetry (API key 72): the metrics of a client, in OTLP's format."""

from typing import Final

from kwire.codec.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from kwire.errors import InvalidRequest
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.telemetry_requests import client_of, receiver_of
from kwire.telemetry.instances import Push
from kwire.types import METADATA_TOPIC_ID, ZERO_UUID

_NO_INSTANCES: Final = (ZERO_UUID, METADATA_TOPIC_ID)


@handles(PushTelemetryRequest)
async def push_telemetry(context: Context, request: PushTelemetryRequest) -> PushTelemetryResponse:
    receiver = receiver_of(context)
    if request.client_instance_id in _NO_INSTANCES:
        raise InvalidRequest
    payload = bytes(request.metrics)
    push = Push(
        request.subscription_id, request.compression_type, len(payload), request.terminating
    )
    await receiver.push(client_of(context), request.client_instance_id, push, payload)
    return PushTelemetryResponse()
