"""Answers the two requests of clients that push metrics, and stores the metrics.

One payload is in memory at a time: it is unpacked in a thread, and its numbers are read in slices.
So a client with many metrics does not delay other clients.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

import attrs
import trio

from kwire import metrics as m
from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import (
    InvalidRecord,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
)
from kwire.telemetry.instances import ClientInstance, ClientInstances, Push
from kwire.telemetry.series import CLIENT_SERIES_MAX, ClientSeries, Labels, Numbered, add_labels
from kwire.telemetry.subscriptions import Assigned, Subscriptions
from kwire.types import random_uuid, uuid_text

_ELEMENTS_MAX: Final = 50_000
"""The largest number of elements of a payload that are read."""


@attrs.frozen(eq=False, repr=False)
class PushingClient:
    """A client that pushes metrics, as seen by this broker."""

    connection: "dict[object, Callable[[], None]]"
    """The callbacks for the end of the connection, by any key."""
    user: str
    attributes: Mapping[str, str]
    """The attributes by which subscriptions choose clients, without the instance's id."""

    def attributes_of(self, instance_id: bytes) -> dict[str, str]:
        """Return all attributes of one of the client's instances."""
        return {"client_instance_id": uuid_text(instance_id), **self.attributes}

    def labels_of(self, instance_id: bytes) -> Labels:
        """Return the labels of all series of one of the client's instances."""
        attributes = self.attributes_of(instance_id)
        names = ("client_id", "client_instance_id", "client_software_name")
        shown = {name: attributes[name] for name in (*names, "client_software_version")}
        return (*shown.items(), ("user", self.user))


@attrs.frozen(eq=False, repr=False)
class Counts:
    """The counters of the requests."""

    unknown: m.Cell
    throttled: m.Cell
    received: m.Cell
    refused: m.Cell

    @classmethod
    def of(cls, metrics: m.Metrics) -> "Counts":
        return cls(
            metrics.cell(m.CLIENT_UNKNOWN_SUBSCRIPTIONS),
            metrics.cell(m.CLIENT_PUSHES_THROTTLED),
            metrics.cell(m.CLIENT_PUSHES),
            metrics.cell(m.CLIENT_PUSHES_REFUSED),
        )


class TelemetryReceiver:
    """One broker's subscriptions, client instances and received metrics."""

    def __init__(
        self,
        metrics: m.Metrics,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        *,
        max_bytes: int,
        max_series: int,
    ) -> None:
        self.subscriptions = Subscriptions()
        self.max_bytes = max_bytes
        self._clock = clock
        self._random_bytes = random_bytes
        self._instances = ClientInstances(metrics)
        self._series = ClientSeries(max_series, metrics)
        self._counts = Counts.of(metrics)
        self._turn = trio.CapacityLimiter(1)
        """The one payload in memory."""

    def lines(self) -> Iterator[str]:
        """Yield the clients' lines of the metrics page."""
        return self._series.lines(self._clock.now())

    async def subscription(
        self, client: PushingClient, instance_id: bytes
    ) -> tuple[bytes, Assigned]:
        """Return a client's instance id and the metrics it should push; raises KafkaError."""
        if not any(instance_id):
            instance_id = random_uuid(self._random_bytes)
        instance = await self._instance(client, instance_id)
        try:
            instance.check_question(self._clock.now())
        except ThrottlingQuotaExceeded:
            self._counts.throttled.value += 1
            raise
        return instance_id, instance.assigned

    async def push(
        self, client: PushingClient, instance_id: bytes, push: Push, payload: bytes
    ) -> None:
        """Store the metrics that a client pushes; raises KafkaError."""
        instance = await self._instance(client, instance_id)
        try:
            instance.check_push(push, self.max_bytes, self._clock.now())
            if payload:
                await self._take(client, instance, push.compression_type, payload)
        except ThrottlingQuotaExceeded:
            self._counts.throttled.value += 1
            raise
        except UnknownSubscriptionId:
            self._counts.unknown.value += 1
            raise
        except (InvalidRecord, TelemetryTooLarge) as error:
            instance.last_error = type(error)
            self._counts.refused.value += 1
            raise
        self._counts.received.value += 1

    async def _instance(self, client: PushingClient, instance_id: bytes) -> ClientInstance:
        """Return an instance, which starts over if its subscription may have changed."""
        now, version = self._clock.now(), self.subscriptions.version
        instance = self._instances.find(instance_id, version, now)
        if instance is None:
            attributes = client.attributes_of(instance_id)
            assigned = await self.subscriptions.assign(instance_id, attributes)
            instance = ClientInstance(instance_id, assigned, version)
            self._bind(client, instance_id)
        self._instances.keep(instance, now)
        return instance

    def _bind(self, client: PushingClient, instance_id: bytes) -> None:
        """Remove the connection's previous instance now, and this one when the connection ends."""
        end_former = client.connection.pop(TelemetryReceiver, None)
        if end_former is not None:
            end_former()
        client.connection[TelemetryReceiver] = partial(self._instances.forget, instance_id)

    async def _take(
        self, client: PushingClient, instance: ClientInstance, codec: int, payload: bytes
    ) -> None:
        async with self._turn:
            message = await trio.to_thread.run_sync(_unpack, payload, codec, self.max_bytes)
            from kwire.telemetry.payload import samples

            labels = client.labels_of(instance.id)
            pushed: list[Numbered] = []
            slices = Slices()
            for sample in islice(samples(message), _ELEMENTS_MAX):
                await slices.pause()
                if sample is None:
                    continue
                has_room = len(pushed) < CLIENT_SERIES_MAX
                shown = add_labels(sample, labels) if has_room else None
                if shown is None:
                    self._series.count_dropped(1)
                else:
                    pushed.append(shown)
            now = self._clock.now()
            self._series.replace(instance.id, pushed, now, now + instance.expiry_s)


def _unpack(payload: bytes, codec: int, max_bytes: int) -> object:
    """Unpack a payload; on first use, the thread also imports the modules needed for this."""
    from kwire.telemetry.payload import unpack

    return unpack(payload, codec, max_bytes)
