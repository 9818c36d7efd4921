"""How many partitions a client may create and delete a second (KIP-599).

Each user, client id or pair of both that has a ``controller_mutation_rate`` has a token bucket. A
change takes a token a partition and may take more than there are; after that nothing is allowed
until the bucket is out of debt. Buckets are in the memory of the active controller.

Topics that are made on first use count for the client that named them; those that a broker needs
for itself count for the broker, as in Kafka.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from kwire.errors import ThrottlingQuotaExceeded
from kwire.raftmeta.metadata.image import QuotaEntity

RATE: Final = "controller_mutation_rate"
BURST_SECONDS: Final = 11.0
"""How long the rate may be saved up, unless ``controller.quota.window.*`` say otherwise."""
BUCKETS_MAX: Final = 10_000


class Requester(NamedTuple):
    """The client for which something is created."""

    principal: tuple[str, str]
    """Kind and name."""
    client_id: str
    host: str = "127.0.0.1"


@attrs.define
class Bucket:
    """Tokens as they were at a time, negative when in debt."""

    tokens: float
    filled_at: float


@attrs.define
class Permit:
    """What one request may still change; ``bucket`` is None if nothing limits it."""

    bucket: Bucket | None = None
    rate: float = math.inf
    strict: bool = False
    """Whether changes are refused in debt, for clients that know the error; others are slowed."""
    throttle_ms: int = 0
    """How long the client is to wait before its next request."""
    _taken: int = 0

    def start_over(self) -> None:
        """Give back what was taken: the request is decided again, of the start."""
        if self.bucket is not None:
            self.bucket.tokens += self._taken
        self._taken = self.throttle_ms = 0

    def take(self, partitions: int) -> None:
        """Count a change; raise ThrottlingQuotaExceeded if it has to wait."""
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
        self.throttle_ms = round(-bucket.tokens / self.rate * 1000)


@attrs.define
class MutationQuotas:
    """The buckets of all clients, by user and client id as far as their quota names these."""

    burst_s: float = BURST_SECONDS
    _buckets: dict[tuple[str | None, str | None], Bucket] = attrs.field(factory=dict)

    def permit(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float]],
        user: str,
        client_id: str,
        now: float,
        *,
        strict: bool,
    ) -> Permit:
        """What a client may change now."""
        for entity in _entities(user, client_id):
            rate = quotas.get(entity, {}).get(RATE)
            if rate is not None:
                break
        else:
            return Permit()
        kinds = {kind for kind, _ in entity}
        key = (user if "user" in kinds else None, client_id if "client-id" in kinds else None)
        full = rate * self.burst_s
        if len(self._buckets) >= BUCKETS_MAX and key not in self._buckets:
            self._buckets.clear()  # They fill up within seconds; this is to have a bound.
        bucket = self._buckets.setdefault(key, Bucket(full, now))
        bucket.tokens = min(full, bucket.tokens + rate * (now - bucket.filled_at))
        bucket.filled_at = now
        return Permit(bucket, rate, strict)

    def clear(self) -> None:
        """Forget all clients: leadership ended."""
        self._buckets.clear()


def _entities(user: str, client_id: str) -> list[QuotaEntity]:
    """Whose quota may count, the closest first; None stands for the default."""
    return [
        (("client-id", client_id), ("user", user)),
        (("client-id", None), ("user", user)),
        (("user", user),),
        (("client-id", client_id), ("user", None)),
        (("client-id", None), ("user", None)),
        (("user", None),),
        (("client-id", client_id),),
        (("client-id", None),),
    ]
