"""The settings of a topic's logs, from its overrides and the broker's defaults."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from kwire.configs.broker import BrokerConfig
from kwire.configs.topic import TopicConfig
from kwire.log.config import LogConfig

_SAME_NAME: Final = (
    "segment_ms", "segment_jitter_ms", "segment_index_bytes", "index_interval_bytes",
    "preallocate", "retention_bytes", "retention_ms", "file_delete_delay_ms", "flush_messages",
    "flush_ms", "delete_retention_ms", "min_compaction_lag_ms", "max_compaction_lag_ms",
    "min_cleanable_dirty_ratio", "max_message_bytes", "compression_type", "min_insync_replicas",
)  # fmt: skip


def log_config(overrides: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    """Return the settings of a topic's logs; ``overrides`` are the topic's own in the metadata."""
    return _build(overrides, broker) if overrides else _default_config(broker)


@lru_cache(maxsize=4)
def _default_config(broker: BrokerConfig) -> LogConfig:
    """Return the settings that all topics without overrides share."""
    return _build({}, broker)


def _build(overrides: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    topic = TopicConfig(overrides, broker, stored=True)
    same = {name: getattr(topic, name) for name in _SAME_NAME}
    return LogConfig(
        **same,
        segment_bytes=(
            topic.segment_bytes
            if topic.internal_segment_bytes is None
            else topic.internal_segment_bytes
        ),
        compression_level=_level(topic),
        cleanup_delete="delete" in topic.cleanup_policy,
        cleanup_compact="compact" in topic.cleanup_policy,
        log_append_time=topic.message_timestamp_type == "LogAppendTime",
        timestamp_before_max_ms=topic.message_timestamp_before_max_ms,
        timestamp_after_max_ms=topic.message_timestamp_after_max_ms,
        unclean_leader_election=topic.unclean_leader_election_enable,
        leader_throttled_replicas=frozenset(topic.leader_replication_throttled_replicas),
        follower_throttled_replicas=frozenset(topic.follower_replication_throttled_replicas),
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
    )


def _level(topic: TopicConfig) -> int | None:
    """Return the level at which the broker compresses, None for the codec's default."""
    key = topic.keys().get(f"compression.{topic.compression_type}.level")
    if key is None or not key.effective:
        return None
    level = topic.integer(key.name)
    return None if level == key.default else level
