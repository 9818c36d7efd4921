"""The registration requests of a node's broker and of its controller."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kwire.codec.messages.broker_registration import BrokerRegistrationRequest
from kwire.codec.messages.controller_registration import ControllerRegistrationRequest
from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import PROTOCOLS, ListenerEndpoint

L = TypeVar("L")
F = TypeVar("F")


def broker_registration(
    config: BrokerConfig,
    *,
    cluster_id: str,
    incarnation_id: bytes,
    endpoints: Sequence[ListenerEndpoint],
    features: Mapping[str, tuple[int, int]],
    log_dirs: Sequence[bytes],
) -> BrokerRegistrationRequest:
    """Build a broker's registration; ``endpoints`` must have the ports that are actually bound."""
    request = BrokerRegistrationRequest
    return request(
        broker_id=config.node_id,
        cluster_id=cluster_id,
        incarnation_id=incarnation_id,
        listeners=_listeners(request.Listener, endpoints),
        features=_features(request.Feature, features),
        rack=config.broker_rack,
        log_dirs=sorted(log_dirs, key=_signed_halves),
    )


def controller_registration(
    config: BrokerConfig,
    incarnation_id: bytes,
    endpoints: Sequence[ListenerEndpoint],
    features: Mapping[str, tuple[int, int]],
) -> ControllerRegistrationRequest:
    """Build a controller's registration; ``endpoints`` have the ports that are actually bound."""
    request = ControllerRegistrationRequest
    return request(
        controller_id=config.node_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        listeners=_listeners(request.Listener, endpoints),
        features=_features(request.Feature, features),
    )


def _listeners(listener: Callable[..., L], endpoints: Sequence[ListenerEndpoint]) -> list[L]:
    """Convert endpoints to the structures of a registration request."""
    return [
        listener(name=e.name, host=e.host, port=e.port, security_protocol=PROTOCOLS[e.protocol])
        for e in endpoints
    ]


def _features(feature: Callable[..., F], supported: Mapping[str, tuple[int, int]]) -> list[F]:
    """Convert supported features to the structures of a registration request."""
    return [
        feature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in sorted(supported.items())
    ]


def _signed_halves(directory_id: bytes) -> tuple[int, int]:
    """Return a directory id as two signed numbers, which is how Kafka orders uuids."""
    high, low = struct.unpack(">qq", directory_id)
    return high, low
