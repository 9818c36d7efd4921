"""The settings of a topic: its own, and the broker's where the topic has none."""

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from kwire.configs.broker import BrokerConfig, gzip_level
from kwire.configs.declare import (
    LONG_MAX,
    BadValue,
    Config,
    ConfigError,
    Key,
    boolean,
    double,
    integer,
    long,
    optional_integer,
    string,
    strings,
)

T = TypeVar("T")


def throttled_replicas(value: tuple[str, ...]) -> str | None:
    """Return an error text unless the value is ``*`` or ``partition:broker,…``."""
    pairs = (pair.split(":") for pair in value)
    if value in ((), ("*",)) or all(
        len(p) == 2 and p[0].isdigit() and p[1].isdigit() for p in pairs
    ):
        return None
    return "must be the literal '*' or a list of replicas in the form [partitionId]:[brokerId],..."


class TopicConfig(Config):
    """One topic's settings: ``TopicConfig(overrides, broker)``.

    ``stored``: the overrides come from the metadata log, where another release may have accepted
    them. Settings and values that are now invalid then have no effect; a number outside the bounds
    counts as the nearest bound.
    """

    # fmt: off
    cleanup_policy = strings(
        ("delete",), "What happens to old segments: delete, compact, or both.",
        choices=("compact", "delete"),
    )
    compression_type = string(
        "producer", "The codec batches are stored in; producer leaves them as they come.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level = integer(-1, "The level for gzip.", check=gzip_level)
    compression_lz4_level = integer(
        9, "The level for lz4.", low=1, high=17, effective=False
    )
    compression_zstd_level = integer(3, "The level for zstd.", low=-131_072, high=22)
    delete_retention_ms = long(86_400_000, "How long a tombstone stays.", low=0)
    file_delete_delay_ms = long(60000, "How long a deleted file stays.", low=0)
    flush_messages = long(LONG_MAX, "Records after which the log is flushed to disk.", low=1)
    flush_ms = long(LONG_MAX, "Time after which the log is flushed to disk.", low=0)
    follower_replication_throttled_replicas = strings(
        (), "Replicas whose fetching is slowed down, partition:broker each, or *.",
        check=throttled_replicas, repeats=True,
    )
    leader_replication_throttled_replicas = strings(
        (), "Replicas that are served slowly, partition:broker each, or *.",
        check=throttled_replicas, repeats=True,
    )
    index_interval_bytes = integer(4096, "Bytes between two entries of an index.", low=0)
    internal_segment_bytes = optional_integer("A segment size without bounds.", internal=True)
    local_retention_bytes = long(
        -2, "Bytes kept here of a partition that is also stored remotely.", low=-2, effective=False,
    )
    local_retention_ms = long(
        -2, "Age kept here of a partition that is also stored remotely.", low=-2, effective=False,
    )
    max_compaction_lag_ms = long(LONG_MAX, "The age at which records must be compacted.", low=1)
    min_compaction_lag_ms = long(0, "The age below which records are not compacted.", low=0)
    min_cleanable_dirty_ratio = double(
        0.5, "The uncompacted share of the log from which it is compacted.", low=0, high=1,
    )
    max_message_bytes = integer(1_048_588, "The largest record batch.", low=0)
    message_timestamp_type = string(
        "CreateTime", "Whose clock stamps records.", choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_after_max_ms = long(
        3_600_000, "How far ahead a record's own timestamp may be.", low=0,
    )
    message_timestamp_before_max_ms = long(
        LONG_MAX, "How old a record's own timestamp may be.", low=0,
    )
    min_insync_replicas = integer(1, "Replicas in sync that acks=all needs.", low=1)
    preallocate = boolean(False, "Whether a segment's file gets its full size at once.")
    remote_log_copy_disable = boolean(
        False, "Stops copying segments to remote storage.", effective=False,
    )
    remote_log_delete_on_disable = boolean(
        False, "Deletes what is stored remotely when that is switched off.", effective=False,
    )
    remote_storage_enable = boolean(
        False, "Whether segments are also stored remotely.", effective=False,
    )
    retention_bytes = long(
        -1, "Size of a partition above which old segments are deleted; -1 means no limit."
    )
    retention_ms = long(
        604_800_000, "Age above which segments are deleted; -1 means never.", low=-1
    )
    segment_bytes = integer(1 << 30, "The size at which a segment is rolled.", low=1 << 20)
    segment_index_bytes = integer(10 << 20, "The size of an index file.", low=4)
    segment_jitter_ms = long(0, "How much earlier than segment.ms, at random.", low=0)
    segment_ms = long(604_800_000, "The age at which a segment is rolled.", low=1)
    unclean_leader_election_enable = boolean(
        False, "Whether a replica that was not in sync may become leader.",
    )
    # fmt: on

    def __init__(
        self,
        overrides: Mapping[str, str],
        broker: BrokerConfig | None = None,
        *,
        stored: bool = False,
    ) -> None:
        self.overrides = dict(overrides)
        self._broker = broker
        super().__init__(overrides, stored=stored)

    def fallback(self, key: Key[T]) -> T:
        """Return the broker's corresponding value if there is one, else the table's default."""
        attribute = FROM_BROKER.get(key.name)
        if self._broker is None or attribute is None:
            return key.default
        value: T = getattr(self._broker, attribute)
        return value


FROM_BROKER: Final = {
    "cleanup.policy": "log_cleanup_policy",
    "compression.type": "compression_type",
    "compression.gzip.level": "compression_gzip_level",
    "compression.lz4.level": "compression_lz4_level",
    "compression.zstd.level": "compression_zstd_level",
    "delete.retention.ms": "log_cleaner_delete_retention_ms",
    "file.delete.delay.ms": "log_segment_delete_delay_ms",
    "flush.messages": "log_flush_interval_messages",
    "flush.ms": "log_flush_time_ms",
    "index.interval.bytes": "log_index_interval_bytes",
    "max.compaction.lag.ms": "log_cleaner_max_compaction_lag_ms",
    "max.message.bytes": "message_max_bytes",
    "message.timestamp.after.max.ms": "log_message_timestamp_after_max_ms",
    "message.timestamp.before.max.ms": "log_message_timestamp_before_max_ms",
    "message.timestamp.type": "log_message_timestamp_type",
    "min.cleanable.dirty.ratio": "log_cleaner_min_cleanable_ratio",
    "min.compaction.lag.ms": "log_cleaner_min_compaction_lag_ms",
    "min.insync.replicas": "min_insync_replicas",
    "preallocate": "log_preallocate",
    "retention.bytes": "log_retention_bytes",
    "retention.ms": "log_retention_time_ms",
    "segment.bytes": "log_segment_bytes",
    "segment.index.bytes": "log_index_size_max_bytes",
    "segment.jitter.ms": "log_roll_jitter_time_ms",
    "segment.ms": "log_roll_time_ms",
    "unclean.leader.election.enable": "unclean_leader_election_enable",
}
"""For each topic setting, the BrokerConfig attribute that holds its default."""

SYNONYMS: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    **{
        name: name
        for name in (
            "compression.gzip.level",
            "compression.lz4.level",
            "compression.type",
            "compression.zstd.level",
            "min.insync.replicas",
            "unclean.leader.election.enable",
        )
    },
}
"""For each topic setting, the broker setting that DescribeConfigs lists as its synonym."""


def outdated_settings(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and reason of each stored setting that this release would reject."""
    keys = TopicConfig.keys()
    for name, text in sorted(texts.items()):
        if name not in keys:
            yield name, f"Unknown topic config name: {name}"
            continue
        try:
            keys[name].parse(text)
        except BadValue as error:
            yield name, str(error)


def check_topic_config(texts: Mapping[str, str], broker: BrokerConfig | None = None) -> None:
    """Check a topic's own settings; raise ConfigError for the first invalid one."""
    keys = TopicConfig.keys()
    for name in texts:
        if name not in keys:
            raise ConfigError(f"Unknown topic config name: {name}")
    config = TopicConfig(texts, broker)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            "conflict topic config setting min.compaction.lag.ms "
            f"({config.min_compaction_lag_ms}) > max.compaction.lag.ms "
            f"({config.max_compaction_lag_ms})"
        )
    if config.remote_storage_enable:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured "
            "with remote log storage."
        )
