"""The metrics that each client pushes, from the subscriptions of administrators.

A client pushes the metrics of all subscriptions that match it, at the shortest of their intervals.
The subscription id is Kafka's: it depends on the metrics, in the order of Java's hash tables, on
the interval and on the client instance. So a client that moves between brokers keeps its id.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final, NamedTuple

import crc32c

from kwire.configs.client_metrics import (
    ALL_METRICS,
    DEFAULT_INTERVAL_MS,
    ClientMetricsConfig,
    parse_patterns,
)
from kwire.configs.declare import ConfigError
from kwire.configs.resource_types import CLIENT_METRICS
from kwire.coordinator.partitioning import java_hash
from kwire.drive import Slices, run_in_slices, run_steps
from kwire.hash_order import buckets_of, hash_of_uuid, listing
from kwire.regexes import Match

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 16
"""The number of subscriptions that are matched with a client without a pause."""


class Subscription(NamedTuple):
    """One client-metrics resource."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: Mapping[str, Match]
    """Expressions that the client's attributes must match, by attribute."""

    def matches(self, attributes: Mapping[str, str]) -> bool:
        """Return whether a client with these attributes is subscribed."""
        return all(
            name in attributes and match(attributes[name]) for name, match in self.patterns.items()
        )


class Assigned(NamedTuple):
    """The metrics that one client instance pushes."""

    metrics: list[str]
    interval_ms: int
    subscription_id: int


class Subscriptions:
    """All subscriptions of the cluster, kept up to date with the metadata."""

    def __init__(self) -> None:
        self._by_name: dict[str, Subscription] = {}
        self.version = 0
        """A number that grows with each change."""

    def __len__(self) -> int:
        return len(self._by_name)

    def update(self, name: str, settings: Mapping[str, str]) -> None:
        """Replace the settings of a subscription; without settings, the subscription ends."""
        self.version += 1
        self._by_name.pop(name, None)
        if not settings:
            return
        config = ClientMetricsConfig(settings, stored=True)
        try:
            patterns = parse_patterns(config.match)
        except ConfigError as error:  # Apache Kafka accepts more expressions.
            logger.warning("client metrics subscription ignored name=%s reason=%s", name, error)
            return
        self._by_name[name] = Subscription(config.metrics, config.interval_ms, patterns)

    async def follow(
        self,
        changed: Iterable[tuple[int, str]],
        settings_of: Callable[[int, str], Mapping[str, str]],
    ) -> None:
        """Apply changes of config resources, given by type and name."""
        slices = Slices()
        for resource_type, name in changed:
            if resource_type == CLIENT_METRICS:
                self.update(name, settings_of(resource_type, name))
            await slices.pause()

    async def assign(self, instance_id: bytes, attributes: Mapping[str, str]) -> Assigned:
        """Return the metrics that a client should push."""
        steps = self._assign(instance_id, attributes)
        return run_steps(steps) if len(self) <= _AT_ONCE else await run_in_slices(steps)

    def _assign(
        self, instance_id: bytes, attributes: Mapping[str, str]
    ) -> Generator[None, None, Assigned]:
        interval_ms = DEFAULT_INTERVAL_MS
        metrics: dict[str, None] = {}
        for name in (yield from _in_javas_order(self._by_name)):
            subscription = self._by_name.get(name)
            if subscription is not None and subscription.matches(attributes):
                interval_ms = min(interval_ms, subscription.interval_ms)
                metrics |= dict.fromkeys((yield from _in_javas_order(subscription.metrics)))
            yield
        if ALL_METRICS in metrics:
            metrics = {ALL_METRICS: None}
        order = yield from _in_javas_order(metrics)
        return Assigned(order, interval_ms, subscription_id(order, interval_ms, instance_id))


def subscription_id(metrics: list[str], interval_ms: int, instance_id: bytes) -> int:
    """Return Kafka's id of a client's subscription, a signed 32-bit integer."""
    checksum: int = crc32c.crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    unsigned = checksum ^ hash_of_uuid(instance_id)
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned


def _in_javas_order(texts: Iterable[str]) -> Generator[None, None, list[str]]:
    added = list(texts)
    return (yield from listing(added, java_hash, buckets_of(len(added))))
