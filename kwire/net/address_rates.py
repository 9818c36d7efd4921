"""Limits the rates at which addresses open connections, which operators set as quotas (KIP-612).

Pure state; the caller passes the time. Rules, as in Kafka: each node limits each address that has
its own or the default quota (``connection_creation_rate``). The rate is measured over
``quota.window.num`` windows, so an address may at first open the connections of all full windows at
once. A connection over the rate is not counted; it is closed once the rate has fallen back to the
quota, but after one window at the latest.
"""

from typing import Final

import attrs

from kwire.raftmeta.metadata.quota_lookup import Quotas, client_address
from kwire.replica.throttles import RateLimit

CREATED: Final = "connection_creation_rate"
ADDRESSES_MAX: Final = 10_000
"""The number of addresses whose rates are remembered; the rates of further addresses start over."""


@attrs.define(eq=False, repr=False)
class AddressRates:
    """The rates of the addresses that connect to one node."""

    window_count: int = 11
    window_s: float = 1.0
    _quotas: dict[str | None, float] = attrs.field(init=False, factory=dict)
    """The quotas by address, in the form of the addresses of clients; None is the default."""
    _rates: dict[str, RateLimit] = attrs.field(init=False, factory=dict)

    def follow(self, quotas: Quotas) -> None:
        """Replace the quotas; those of host names, which nothing resolves here, are left out."""
        self._quotas = {}
        for entity, values in quotas.items():
            names = dict(entity)
            if "ip" not in names or CREATED not in values:
                continue
            name = names["ip"]
            address = None if name is None else client_address(name)
            if name is None or address is not None:
                self._quotas[address] = values[CREATED]

    def throttle_s(self, address: str, now: float) -> float:
        """Count a new connection; return 0, or the seconds until it is to be closed."""
        if not self._quotas:
            return 0.0
        allowed = self._quotas.get(address, self._quotas.get(None))
        if allowed is None:
            return 0.0
        rate = self._rates.get(address)
        if rate is None:
            if len(self._rates) >= ADDRESSES_MAX:
                self._rates.clear()
            rate = RateLimit.of_quota(allowed, self.window_count, self.window_s)
            self._rates[address] = rate
        rate.bytes_per_s = allowed
        rate.record(1, now)
        excess_ms = rate.excess_ms(now)
        if excess_ms:
            rate.record(-1, now)
        return min(excess_ms / 1000, self.window_s)
