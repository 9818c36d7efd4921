"""The settings of the share coordinator, under Kafka's names."""

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ShareStateSettings:
    """The settings of the share coordinator; the defaults are Kafka's."""

    updates_per_snapshot: int = 500
    """The number of updates after which the next write is stored as a snapshot."""
    write_timeout_ms: int = 5_000
    """The longest wait for the replicas of `__share_group_state`."""
    prune_interval_ms: int = 300_000
    cold_snapshot_interval_ms: int = 300_000
    """The age at which an unchanged snapshot is repeated, so that older records can be pruned."""
    compression: int = 0
    """The codec of new batches."""

    @classmethod
    def of(cls, config: "BrokerConfig") -> "ShareStateSettings":
        """Return the settings of the broker's configuration."""
        return cls(
            updates_per_snapshot=config.share_coordinator_snapshot_update_records_per_snapshot,
            write_timeout_ms=config.share_coordinator_write_timeout_ms,
            prune_interval_ms=config.share_coordinator_state_topic_prune_interval_ms,
            cold_snapshot_interval_ms=config.share_coordinator_cold_partition_snapshot_interval_ms,
            compression=config.share_coordinator_state_topic_compression_codec,
        )
