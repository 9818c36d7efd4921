"""The quota on partitions that a client creates and deletes per second (KIP-599).

Each user, client id or pair of both with a ``controller_mutation_rate`` has a token bucket. A
change takes one token per partition and may overdraw the bucket; after that, nothing is allowed
until the debt is paid off. The buckets are in the active controller's memory.

A topic created on first use is charged to the client that named it. An internal topic that a broker
creates for itself is charged to the broker, as in Kafka.
"""

import math
from typing import Final, NamedTuple

import attrs

from kwire.errors import ThrottlingQuotaExceeded
from kwire.raftmeta.metadata.quota_lookup import Quotas, find_quota
from kwire.replica.throttles import THROTTLE_MS_MAX

RATE: Final = "controller_mutation_rate"
BURST_SECONDS: Final = 11.0
"""The bucket's size in seconds of the rate, unless ``controller.quota.window.*`` say otherwise."""
BUCKETS_MAX: Final = 10_000


class Requester(NamedTuple):
    """The client on whose behalf something is created or deleted."""

    principal: tuple[str, str]
    """The principal's type and name."""
    client_id: str
    host: str = "127.0.0.1"


@attrs.define(eq=False, repr=False)
class Bucket:
    """The tokens in a bucket at ``filled_at``; negative when overdrawn."""

    tokens: float
    filled_at: float


@attrs.define(eq=False, repr=False)
class Permit:
    """The changes that one request may still make; ``bucket`` is None if there is no limit."""

    bucket: Bucket | None = None
    rate: float = math.inf
    strict: bool = False
    """True if overdrawn changes fail, for clients that know the error; others are only delayed."""
    throttle_ms: int = 0
    """Milliseconds that the client has to wait before its next request."""
    _taken: int = 0

    def start_over(self) -> None:
        """Put the tokens back into the bucket, because the whole request is decided again."""
        if self.bucket is not None:
            self.bucket.tokens += self._taken
        self._taken = self.throttle_ms = 0

    def take(self, partitions: int) -> None:
        """Charge a change to the bucket; raise ThrottlingQuotaExceeded if that is not allowed."""
        bucket = self.bucket
        if bucket is None:
            return
        if self.strict and bucket.tokens < 0:
            self._wait(bucket)
            raise ThrottlingQuotaExceeded("The throttling quota has been exceeded.")
        bucket.tokens -= partitions
        self._taken += partitions
        if not self.strict and bucket.tokens < 0:
            self._wait(bucket)

    def _wait(self, bucket: Bucket) -> None:
        self.throttle_ms = round(min(-bucket.tokens / self.rate * 1000, THROTTLE_MS_MAX))


@attrs.define(eq=False, repr=False)
class MutationQuotas:
    """The buckets of all clients, keyed by user, client id or both, like their quotas."""

    burst_s: float = BURST_SECONDS
    _buckets: dict[tuple[str | None, str | None], Bucket] = attrs.field(factory=dict)

    def permit(
        self,
        quotas: Quotas,
        user: str,
        client_id: str,
        now: float,
        *,
        strict: bool,
    ) -> Permit:
        """Return the permit for one request of a client."""
        quota = find_quota(quotas, RATE, user, client_id)
        if quota is None:
            return Permit()
        rate, key = quota.rate, (quota.user, quota.client_id)
        full = rate * self.burst_s
        if len(self._buckets) >= BUCKETS_MAX and key not in self._buckets:
            self._buckets.clear()  # They fill up within seconds; clearing them bounds their number.
        bucket = self._buckets.setdefault(key, Bucket(full, now))
        bucket.tokens = min(full, bucket.tokens + rate * (now - bucket.filled_at))
        bucket.filled_at = now
        return Permit(bucket, rate, strict)

    def clear(self) -> None:
        """Remove all buckets: leadership ended."""
        self._buckets.clear()
