"""Clients that ask for one of 500 subscriptions, and push metrics to a full store of series."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs

from kwire.clock import SystemClock
from kwire.metrics import Metrics
from kwire.telemetry.instances import Push
from kwire.telemetry.receiver import PushingClient, TelemetryReceiver
from kwire.telemetry.series import CLIENT_SERIES_MAX
from tests.support.telemetry.payloads import Payload
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

SUBSCRIPTIONS: Final = 500
CLIENTS: Final = 10


@attrs.frozen
class Telemetry:
    """A receiver with as many series as it may have."""

    meter: TurnMeter
    receiver: TelemetryReceiver

    async def push(self, number: int) -> None:
        client, instance_id = client_of(number), bytes([number]) * 16
        _, assigned = await self.receiver.subscription(client, instance_id)
        payload = Payload()
        for index in range(CLIENT_SERIES_MAX):
            payload.gauge(f"lag.{index}", 1, topic="topic", partition=str(index))
        data = payload.encode()
        push = Push(assigned.subscription_id, 0, len(data), False)
        with self.meter.measuring():
            await self.receiver.push(client, instance_id, push, data)


def client_of(number: int) -> PushingClient:
    attributes = {"client_id": f"client-{number}", "client_software_name": "test"}
    return PushingClient({}, "ANONYMOUS", attributes | {"client_software_version": "1"})


@asynccontextmanager
async def receiver(meter: TurnMeter) -> AsyncIterator[Telemetry]:
    receiver = TelemetryReceiver(
        Metrics(),
        SystemClock(),
        bytes,
        max_bytes=1 << 20,
        max_series=CLIENTS * CLIENT_SERIES_MAX,
    )
    for number in range(SUBSCRIPTIONS):
        settings = {"metrics": f"m{number}.", "match": "client_id=client-.*"}
        receiver.subscriptions.update(f"subscription-{number}", settings)
    telemetry = Telemetry(meter, receiver)
    for number in range(1, CLIENTS + 1):
        await telemetry.push(number)
    yield telemetry


TELEMETRY: Final = Scene("metrics of clients", receiver)
row = TELEMETRY.operation


@row("GetTelemetrySubscriptions", "subscriptions", SUBSCRIPTIONS, "GetTelemetrySubscriptions")
async def ask(scene: Telemetry, size: int) -> None:
    with scene.meter.measuring():
        _, assigned = await scene.receiver.subscription(client_of(99), bytes([99]) * 16)
    assert len(assigned.metrics) == size


@row("PushTelemetry", "series", CLIENT_SERIES_MAX, "PushTelemetry")
async def push(scene: Telemetry, size: int) -> None:
    await scene.push(98)
    assert sum(line[0] != "#" for line in scene.receiver.lines()) == CLIENTS * size
