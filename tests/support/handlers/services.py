"""The parts of a node that a test gives to the handlers; the use of any other part fails."""

from typing import Any

import attrs

from kwire.clock import SystemClock
from kwire.handlers.shared.context import BrokerServices, Current, Services
from kwire.handlers.shared.shared_response import MetadataFrames
from kwire.metrics import Metrics
from kwire.raftmeta.metadata.image import MetadataImage


class Missing:
    """A part that a test does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the test has no {self._name}")

    __call__ = __getattr__


def services_of(**parts: Any) -> Services:
    """Return the services of a node with these parts, by their names in any of the classes."""
    defaults = {"clock": SystemClock(), "metrics": Metrics(), "cluster_id": ""}
    defaults |= {"image": MetadataImage(), "supported_features": {}}
    defaults |= {"metadata_frames": MetadataFrames()}
    optional = {"authorizer": None, "check_certificates": None, "telemetry": None}
    parts = defaults | optional | parts
    parts["current"] = _make(Current, parts)
    parts["broker"] = _make(BrokerServices, parts)
    services: Services = _make(Services, parts)
    assert not parts, f"unknown parts: {', '.join(parts)}"
    return services


def _make(kind: Any, parts: dict[str, Any]) -> Any:
    """Create an object of these parts, which are removed from ``parts``."""
    names = [field.name for field in kind.__attrs_attrs__]
    return kind(**{name: parts.pop(name, Missing(name)) for name in names})


def with_parts(services: Services, **parts: Any) -> Services:
    """Return the same services with other parts; settings and metadata are still shared."""
    names = {field.name for field in BrokerServices.__attrs_attrs__}
    of_broker = {name: part for name, part in parts.items() if name in names}
    of_node = {name: part for name, part in parts.items() if name not in names}
    assert services.broker is not None
    broker = attrs.evolve(services.broker, **of_broker)
    return attrs.evolve(services, broker=broker, **of_node)
