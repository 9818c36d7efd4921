"""Payloads as clients push them: OTLP's MetricsData."""

from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

CUMULATIVE = 2


class Payload:
    """A payload under construction, of one resource."""

    def __init__(self, **attributes: str) -> None:
        self.data: Any = MetricsData()
        self.resource = self.data.resource_metrics.add()
        self.scope = self.resource.scope_metrics.add()
        _add(self.resource.resource, attributes)

    def gauge(self, name: str, value: float, **attributes: str) -> "Payload":
        metric = self.scope.metrics.add(name=name)
        point = metric.gauge.data_points.add(as_double=value)
        _add(point, attributes)
        return self

    def sum(
        self, name: str, value: int, *, temporality: int = CUMULATIVE, monotonic: bool = True
    ) -> "Payload":
        metric = self.scope.metrics.add(name=name)
        metric.sum.aggregation_temporality = temporality
        metric.sum.is_monotonic = monotonic
        metric.sum.data_points.add(as_int=value)
        return self

    def encode(self) -> bytes:
        data: bytes = self.data.SerializeToString()
        return data


def _add(target: Any, attributes: dict[str, str]) -> None:
    for name, value in attributes.items():
        attribute = target.attributes.add(key=name)
        attribute.value.string_value = value
