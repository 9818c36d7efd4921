"""Limits on connections: their number per node, listener and address, and their rate.

KIP-402, KIP-612. Pure: ``now`` is an argument. A connection over a listener's or the node's limit
waits in the kernel's backlog; a connection over its address's limit is closed at once. The
listeners that nodes use among themselves are protected: their connections replace idle connections
of other listeners, and the node's rate does not limit them.
"""

from collections import Counter
from collections.abc import Mapping

import attrs

UNLIMITED = (1 << 31) - 1


def last_descriptor(descriptors: int) -> int:
    """Return the highest descriptor that a connection may use, given the process's limit.

    The kernel assigns the lowest free descriptor, so higher ones remain for files: a broker that is
    flooded with connections still serves the connections it has.
    """
    return descriptors - max(descriptors // 8, 64)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Limits:
    """The limits of a node's or one listener's connections, named like Kafka's settings."""

    max_connections: int = UNLIMITED
    max_connections_per_ip: int = UNLIMITED
    max_connections_per_ip_overrides: Mapping[str, int] = attrs.field(factory=dict)
    max_connection_creation_rate: int = UNLIMITED
    connections_max_idle_ms: int = 600_000
    socket_request_max_bytes: int = 100 << 20
    socket_receive_buffer_bytes: int = -1
    socket_send_buffer_bytes: int = -1
    socket_listen_backlog_size: int = 50
    queued_max_request_bytes: int = -1
    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    of_listeners: "Mapping[str, Limits]" = attrs.field(factory=dict)
    """The limits of the listeners that have settings of their own, by name."""

    def of_listener(self, name: str) -> "Limits":
        """Return the limits of a listener; by default, the number and the rate are the node's."""
        return self.of_listeners.get(name, self)


@attrs.define(eq=False, repr=False)
class Rate:
    """A token bucket of ``per_second`` events a second, which holds one second's worth."""

    per_second: int
    _tokens: float = attrs.field(init=False)
    _at: float = attrs.field(init=False, default=float("-inf"))

    def __attrs_post_init__(self) -> None:
        self._tokens = self.per_second

    def delay_s(self, now: float) -> float:
        """Return the seconds until one more event is allowed."""
        if self.per_second >= UNLIMITED:
            return 0.0
        if self.per_second == 0:
            return float("inf")
        self._tokens = min(self.per_second, self._tokens + (now - self._at) * self.per_second)
        self._at = now
        return max(0.0, (1 - self._tokens) / self.per_second)

    def take(self) -> None:
        """Count an event. Without a limit, :meth:`delay_s` adds no tokens that could be taken."""
        if self.per_second < UNLIMITED:
            self._tokens -= 1


@attrs.define(eq=False, repr=False)
class Admission:
    """Counts the open connections of one node."""

    node: Limits
    total: int = 0
    per_listener: Counter[str] = attrs.field(factory=Counter)
    per_address: Counter[str] = attrs.field(factory=Counter)

    def is_full(self, listener: str, limits: Limits) -> bool:
        """Return whether a new connection of this listener must wait for an old one to end."""
        return (
            self.total >= self.node.max_connections
            or self.per_listener[listener] >= limits.max_connections
        )

    def is_address_full(self, address: str) -> bool:
        """Return whether this address has as many connections as it may have."""
        allowed = self.node.max_connections_per_ip_overrides.get(
            address, self.node.max_connections_per_ip
        )
        return self.per_address[address] >= allowed

    def on_opened(self, listener: str, address: str) -> None:
        self.total += 1
        self.per_listener[listener] += 1
        self.per_address[address] += 1

    def on_closed(self, listener: str, address: str) -> None:
        self.total -= 1
        self.per_listener[listener] -= 1
        self.per_address[address] -= 1
        if not self.per_address[address]:
            del self.per_address[address]
