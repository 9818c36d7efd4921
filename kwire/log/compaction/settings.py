"""The broker's settings of compaction, under Kafka's names; they may change at run time."""

import math
from typing import Final

from kwire import attrs

MAP_BYTES_MAX: Final = (1 << 31) - 1
"""The largest memory of one worker's offset map, as in Kafka."""


@attrs.frozen(kw_only=True)
class CleanerSettings:
    """The settings of all workers together; the defaults are Kafka's."""

    threads: int = 1
    """``log.cleaner.threads``: the passes that run at the same time."""
    backoff_ms: int = 15_000
    """``log.cleaner.backoff.ms``: the wait after a change before logs are looked at."""
    map_bytes: int = 128 << 20
    """``log.cleaner.dedupe.buffer.size``, for all workers."""
    load_factor: float = 0.9
    """``log.cleaner.io.buffer.load.factor``"""
    buffer_bytes: int = 512 << 10
    """``log.cleaner.io.buffer.size``, for all workers."""
    bytes_per_second: float = math.inf
    """``log.cleaner.io.max.bytes.per.second``, for all workers."""

    @property
    def worker_map_bytes(self) -> int:
        """The memory of one worker's offset map."""
        return min(self.map_bytes // max(self.threads, 1), MAP_BYTES_MAX)

    @property
    def worker_buffer_bytes(self) -> int:
        """The size of one worker's buffer for reads, and of that for writes."""
        return self.buffer_bytes // max(self.threads, 1) // 2

    @property
    def worker_bytes_per_second(self) -> float:
        """One worker's share of the limit, so that all together keep to it."""
        return self.bytes_per_second / max(self.threads, 1)
