"""The client instances that push metrics to this broker, and when each may send a request.

The rules are Kafka's. A client requests its subscription, pushes right after the response, and then
once per interval. An earlier request is throttled, except for a client's last push, and for a
request for the subscription after the client's subscription id or codec was rejected. When its
subscription changes, an instance starts from the beginning.

The number of instances is limited; the instance that has been silent for longest is removed first.
That is harmless, because its next request is handled like its first.
"""

from collections import OrderedDict
from math import inf
from typing import Final

import attrs

from kwire import metrics as m
from kwire.errors import (
    InvalidRequest,
    KafkaError,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
    UnsupportedCompressionType,
)
from kwire.lazy_heap import LazyHeap
from kwire.records.compression import NAMES
from kwire.telemetry.subscriptions import Assigned

INSTANCES_MAX: Final = 16384
EXPIRY_S: Final = 60.0
"""The shortest time after which a silent instance is removed."""
_INTERVALS: Final = 3
"""The number of push intervals after which a silent instance is removed."""
_FORGOTTEN_AT_ONCE: Final = 4


@attrs.define(eq=False, repr=False)
class Push:
    """The parts of a PushTelemetry request that decide whether it is accepted."""

    subscription_id: int
    compression_type: int
    size: int
    is_last: bool
    """True if the client pushes for the last time."""


@attrs.define(eq=False, repr=False)
class ClientInstance:
    """A client instance with its subscription."""

    id: bytes
    assigned: Assigned
    version: int
    """The version of all subscriptions from which this instance's was computed."""
    asked_at: float = -inf
    """The time of the last accepted request for the subscription."""
    pushed_at: float = -inf
    is_ending: bool = False
    """True once the client has pushed for the last time."""
    last_error: type[KafkaError] | None = None

    @property
    def interval_s(self) -> float:
        return self.assigned.interval_ms / 1000

    @property
    def expiry_s(self) -> float:
        """The time after which a silent instance is removed."""
        return max(EXPIRY_S, _INTERVALS * self.interval_s)

    def check_question(self, now: float) -> None:
        """Raise unless the client may request its subscription now."""
        if now - max(self.asked_at, self.pushed_at) >= self.interval_s:
            self.asked_at = now
        elif self.last_error not in (UnknownSubscriptionId, UnsupportedCompressionType):
            raise ThrottlingQuotaExceeded
        self.last_error = None

    def check_push(self, push: Push, max_bytes: int, now: float) -> None:
        """Raise unless the client may push now and its push is acceptable."""
        try:
            self._check_push(push, max_bytes, now)
        except KafkaError as error:
            self.last_error = type(error)
            raise
        finally:
            self.is_ending = push.is_last
        self.last_error = None

    def _check_push(self, push: Push, max_bytes: int, now: float) -> None:
        if self.is_ending:
            raise InvalidRequest
        if self.asked_at > self.pushed_at or now - self.pushed_at >= self.interval_s:
            self.pushed_at = now
        elif not push.is_last:
            raise ThrottlingQuotaExceeded
        if push.subscription_id != self.assigned.subscription_id:
            raise UnknownSubscriptionId
        if not 0 <= push.compression_type < len(NAMES):
            raise UnsupportedCompressionType
        if push.size > max_bytes:
            raise TelemetryTooLarge


class ClientInstances:
    """The instances by id; each request of an instance postpones its expiry."""

    def __init__(self, metrics: m.Metrics) -> None:
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._expiries: LazyHeap[bytes] = LazyHeap()
        metrics.register_function(m.CLIENT_INSTANCES, lambda: len(self))

    def __len__(self) -> int:
        return len(self._instances)

    def find(self, instance_id: bytes, version: int, now: float) -> ClientInstance | None:
        """Return an instance that has not expired and whose subscription has this version."""
        self._forget_expired(now)
        instance = self._instances.get(instance_id)
        if instance is not None and self._expiries.key(instance_id) <= now:
            return None
        if instance is None or instance.version != version:
            return None
        return instance

    def keep(self, instance: ClientInstance, now: float) -> None:
        """Add or replace an instance, or renew its expiry."""
        self._instances[instance.id] = instance
        self._instances.move_to_end(instance.id)
        self._expiries.push(instance.id, now + instance.expiry_s)
        if len(self._instances) > INSTANCES_MAX:
            self._expiries.discard(self._instances.popitem(last=False)[0])

    def _forget_expired(self, now: float) -> None:
        """Remove some expired instances; that is enough, because each request adds at most one."""
        expiries = self._expiries
        for _ in range(_FORGOTTEN_AT_ONCE):
            if expiries.first_key > now:
                return
            for instance_id in expiries.pop_up_to(expiries.first_key):
                del self._instances[instance_id]

    def forget(self, instance_id: bytes) -> None:
        """Remove an instance, whose connection is closed."""
        if self._instances.pop(instance_id, None) is not None:
            self._expiries.discard(instance_id)
