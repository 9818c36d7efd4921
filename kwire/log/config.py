"""The settings of one log, under Kafka's topic names, and those of all logs of a broker.

The caller builds a :class:`LogConfig` from a topic's configs and hands it to the log. It is frozen:
a changed setting makes a new object.
"""

import math
from collections.abc import Callable
from typing import Final

import attrs

from kwire.errors import RecordListTooLarge
from kwire.records.header import LENGTH_END, BatchHeader
from kwire.records.validate import check_oldest, check_timestamps, refuse_append_time

DAY_MS: Final = 24 * 60 * 60 * 1000


@attrs.frozen(kw_only=True, repr=False)
class LogConfig:
    """A topic's settings; the defaults are Kafka's."""

    segment_bytes: int = 1 << 30
    """``internal.segment.bytes`` where that is set."""
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = (1 << 63) - 1
    flush_ms: int = (1 << 63) - 1
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = 1024 * 1024 + 12
    log_append_time: bool = False
    """``message.timestamp.type=LogAppendTime``."""
    timestamp_before_max_ms: int = (1 << 63) - 1
    timestamp_after_max_ms: int = 60 * 60 * 1000
    compression_type: str = "producer"
    compression_level: int | None = None
    """The level of that codec, None for its default; lz4 and snappy have no levels here."""
    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    leader_throttled_replicas: frozenset[str] = frozenset()
    """``leader.replication.throttled.replicas``: ``partition:broker`` each, or ``*``."""
    follower_throttled_replicas: frozenset[str] = frozenset()
    producer_id_expiration_ms: int = DAY_MS
    """A setting of the broker that every log needs."""

    max_segment_ms: int = attrs.field(init=False)
    """The age at which a segment is rolled; the cleaner reads no segment before its roll."""

    @max_segment_ms.default
    def _roll_after_ms(self) -> int:
        if self.cleanup_compact:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    def roll_jitter_ms(self, random_below: Callable[[int], int]) -> int:
        """Return by how much one new segment is rolled earlier than :attr:`max_segment_ms`.

        The result is always less than :attr:`max_segment_ms`. ``random_below`` returns a number
        from 0 to below its argument; it is called only if the topic has a jitter.
        """
        limit_ms = min(self.segment_jitter_ms, self.max_segment_ms)
        return random_below(limit_ms) if limit_ms else 0

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that a leader may append."""
        return min(self.max_message_bytes, self.segment_bytes)

    def check_batch(self, header: BatchHeader, now_ms: int, *, from_client: bool) -> None:
        """Raise the error for a batch that a leader must not append with these settings.

        The order is Kafka's. ``from_client`` is false for a coordinator's batch, whose timestamps
        are not checked. Followers do not check: the leader may have had different settings.
        """
        if from_client:
            if self.log_append_time:
                refuse_append_time(header)
            else:
                before_ms, after_ms = self.timestamp_before_max_ms, self.timestamp_after_max_ms
                check_timestamps(header, now_ms, before_ms, after_ms)
        if header.length > self.segment_bytes - LENGTH_END:
            raise RecordListTooLarge(
                f"a batch of {header.size} bytes, a segment has at most {self.segment_bytes}"
            )

    def check_oldest(self, header: BatchHeader, min_delta: int, now_ms: int) -> None:
        """Raise InvalidTimestamp if the record with the smallest delta is too old."""
        if not self.log_append_time:
            check_oldest(header, min_delta, now_ms, self.timestamp_before_max_ms)


DEFAULTS: Final = LogConfig()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LogSettings:
    """The broker's settings for all logs; the defaults are Kafka's."""

    high_watermark_checkpoint_ms: int = 5_000
    """``replica.high.watermark.checkpoint.interval.ms``"""
    flush_checkpoint_ms: int = 60_000
    """``log.flush.offset.checkpoint.interval.ms``, and the one of log starts"""
    retention_check_ms: int = 300_000
    """``log.retention.check.interval.ms``"""
    producer_expiry_check_ms: int = 600_000
    """``producer.id.expiration.check.interval.ms``"""


@attrs.frozen(kw_only=True, repr=False)
class ScrubSettings:
    """The settings of the scrub of log directories."""

    interval_s: float
    """``kwire.scrub.interval.ms`` in seconds: how often each directory is checked."""
    bytes_per_second: float
    """``kwire.scrub.bytes.per.second``, for each directory."""


MAP_BYTES_MAX: Final = (1 << 31) - 1
"""The largest memory of one worker's offset map, as in Kafka."""


@attrs.frozen(kw_only=True, repr=False)
class CleanerSettings:
    """The settings of all workers together; the defaults are Kafka's."""

    threads: int = 1
    """``log.cleaner.threads``: the passes that run at the same time."""
    backoff_ms: int = 15_000
    """``log.cleaner.backoff.ms``: how long after a change logs are assessed."""
    map_bytes: int = 128 << 20
    """``log.cleaner.dedupe.buffer.size``, for all workers."""
    load_factor: float = 0.9
    """``log.cleaner.io.buffer.load.factor``"""
    buffer_bytes: int = 512 << 10
    """``log.cleaner.io.buffer.size``, for all workers."""
    bytes_per_second: float = math.inf
    """``log.cleaner.io.max.bytes.per.second``, for all workers together."""

    @property
    def worker_map_bytes(self) -> int:
        """The memory of one worker's offset map."""
        return min(self.map_bytes // max(self.threads, 1), MAP_BYTES_MAX)

    @property
    def worker_buffer_bytes(self) -> int:
        """The size of each of a worker's two buffers, for reads and for writes."""
        return self.buffer_bytes // max(self.threads, 1) // 2
