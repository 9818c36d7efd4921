"""The quotas on clients' bytes per second (KIP-13, KIP-219) and request time (KIP-124).

Pure state; the caller passes the time. Rules, as in Kafka:

* Each broker limits each user, client id or pair of both that has a quota, over all connections.
  The rate is measured over ``quota.window.num`` windows, so a client that was idle may at first use
  the bytes of all full windows at once.
* A request is never rejected. Its bytes may exceed the quota; the response then tells the client
  how long the rate takes to fall back to the quota, and the connection is not read meanwhile.
* A quota on request time is a percentage of one thread's time; kwire has one thread. It is counted
  in microseconds. A response throttles a client for at most one window.
* A fetch reads no more than the quota has left. If nothing is left, it gets an empty response.
"""

from typing import Final

import attrs

from kwire.raftmeta.metadata.quota_lookup import Quotas, find_quota, short_client_id
from kwire.replica.throttles import RateLimit

PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
REQUEST_TIME: Final = "request_percentage"
_MICROSECONDS: Final = 1_000_000
CLIENTS_MAX: Final = 10_000
"""The number of clients whose rates are remembered; beyond that, rates start over."""


@attrs.define(eq=False, repr=False)
class ClientQuotas:
    """The rates of one broker's clients."""

    window_count: int = 11
    window_s: float = 1.0
    _quotas: Quotas = attrs.field(init=False, factory=dict)
    """The quotas from which the limits were looked up."""
    _limits: dict[tuple[str, str, str], RateLimit | None] = attrs.field(init=False, factory=dict)
    """The limits that apply, by name of the quota, user and client id."""
    _rates: dict[tuple[str, str | None, str | None], RateLimit] = attrs.field(
        init=False, factory=dict
    )
    """The same limits by name of the quota, and the user and client id that share it."""

    def limit(self, quotas: Quotas, name: str, user: str, client_id: str) -> RateLimit | None:
        """Return the limit on a client's bytes, or None without a quota."""
        if quotas is not self._quotas:
            self._quotas, self._limits = quotas, {}
        client = name, user, short_client_id(client_id)
        if client in self._limits:
            return self._limits[client]
        if max(len(self._limits), len(self._rates)) >= CLIENTS_MAX:
            self._limits.clear()
            self._rates.clear()
        limit = self._limits[client] = self._look_up(name, user, client_id)
        return limit

    def _look_up(self, name: str, user: str, client_id: str) -> RateLimit | None:
        quota = find_quota(self._quotas, name, user, client_id)
        if quota is None:
            return None
        sharing = name, quota.user, quota.client_id
        limit = self._rates.get(sharing)
        if limit is None:
            limit = RateLimit.of_quota(quota.rate, self.window_count, self.window_s)
            self._rates[sharing] = limit
        limit.bytes_per_s = _microseconds(quota.rate) if name == REQUEST_TIME else quota.rate
        return limit

    def count_time(self, limit: RateLimit, busy_s: float, now: float) -> None:
        """Count the seconds of a request towards the request-time quota."""
        limit.record(round(busy_s * _MICROSECONDS), now)

    def throttle_ms(self, limit: RateLimit, now: float) -> int:
        """Return the throttle time of a client that has used more request time than its quota."""
        return min(limit.excess_ms(now), round(self.window_s * 1000))


def _microseconds(percentage: float) -> float:
    """Return the microseconds per second that a percentage allows."""
    return percentage / 100 * _MICROSECONDS
