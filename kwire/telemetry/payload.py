"""Decodes the payload of a push: OTLP's MetricsData, compressed with one of the codecs.

Only gauges and cumulative sums are read, which is what Kafka's clients send on request. The module
imports the packages that decode OTLP, so it is loaded with the first push.
"""

import re
from collections.abc import Generator, Iterable
from itertools import islice
from math import isnan
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from kwire.errors import InvalidRecord, TelemetryTooLarge
from kwire.records.compression import BadPayload, PayloadTooLarge, decompress
from kwire.telemetry.series import Sample

# Any: the classes that protobuf generates at run time have no types.
Message: TypeAlias = Any

PREFIX: Final = "kwire_client_"
"""The prefix of all names, so that a client cannot send metrics under the broker's names."""
LABELS_MAX: Final = 16
TEXT_MAX: Final = 256
"""The longest name or value of a label, in characters; the rest is cut off."""
_KAFKAS: Final = "org.apache.kafka."
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")
_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def unpack(data: bytes, codec: int, max_bytes: int) -> Message:
    """Decompress and decode a payload; takes milliseconds, so it runs in a thread.

    Raises TelemetryTooLarge if it exceeds ``max_bytes``, compressed or not, and InvalidRecord if it
    is damaged.
    """
    try:
        plain = decompress(codec, data, max_bytes)
    except PayloadTooLarge:
        raise TelemetryTooLarge from None
    except BadPayload:
        raise InvalidRecord from None
    message = MetricsData()
    try:
        message.ParseFromString(bytes(plain))
    except DecodeError:
        raise InvalidRecord from None
    return message


def samples(message: Message) -> Generator[Sample | None, None, None]:
    """Yield each number of a decoded payload, and None for every element without a number."""
    for of_resource in message.resource_metrics:
        resource = _labels(of_resource.resource.attributes)
        yield None
        for of_scope in of_resource.scope_metrics:
            yield None
            for metric in of_scope.metrics:
                yield from _samples(metric, resource)


def _samples(metric: Message, resource: dict[str, str]) -> Generator[Sample | None, None, None]:
    data = metric.WhichOneof("data")
    if data == "gauge":
        kind, points = "gauge", metric.gauge.data_points
    elif data == "sum" and metric.sum.aggregation_temporality == _CUMULATIVE:
        kind = "counter" if metric.sum.is_monotonic else "gauge"
        points = metric.sum.data_points
    else:
        yield None
        return
    name = page_name(metric.name)
    for point in points:
        value = getattr(point, point.WhichOneof("value") or "as_double")
        if isnan(value):  # The average of no values.
            yield None
            continue
        labels = resource | _labels(point.attributes)
        yield Sample(name, kind, tuple(sorted(labels.items())), value)


def _labels(attributes: Iterable[Message]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for attribute in islice(attributes, LABELS_MAX):
        value = attribute.value
        kind = value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            labels[to_name(attribute.key)] = str(getattr(value, kind))[:TEXT_MAX]
    return labels


def page_name(metric: str) -> str:
    """Return the name of a client's metric on the page."""
    return PREFIX + to_name(metric.removeprefix(_KAFKAS))


def to_name(text: str) -> str:
    """Convert a text to a name in Prometheus' format; names with "__" are reserved."""
    name = _NOT_IN_NAMES.sub("_", text[:TEXT_MAX])
    return name if name[:1].isalpha() else f"x{name}"
