"""The settings of a broker's fetchers."""

import attrs


@attrs.frozen(eq=False, repr=False)
class FetcherConfig:
    """The settings of a broker's fetchers; sizes in bytes."""

    node: int
    max_wait_ms: int = 500
    """``replica.fetch.wait.max.ms``."""
    min_bytes: int = 1
    """``replica.fetch.min.bytes``."""
    max_bytes: int = 10 << 20
    """``replica.fetch.response.max.bytes``."""
    partition_max_bytes: int = 1 << 20
    """``replica.fetch.max.bytes``."""
    backoff_s: float = 1.0
    """``replica.fetch.backoff.ms``."""
