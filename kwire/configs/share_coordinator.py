"""The broker's settings of the share coordinator (KIP-932), a part of its table."""

from kwire.configs.declare import Config, Kind, integer


class ShareCoordinatorConfig(Config):
    """The settings whose names begin with `share.coordinator`."""

    # fmt: off
    share_coordinator_cold_partition_snapshot_interval_ms = integer(
        300_000, "The age at which the snapshot of an idle share partition is repeated.", low=1,
        internal=True)
    share_coordinator_snapshot_update_records_per_snapshot = integer(
        500, "Updates of a share partition between two snapshots of its state.", low=0, high=500)
    share_coordinator_state_topic_compression_codec = integer(
        0, "The compression of the state topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.")
    share_coordinator_state_topic_min_isr = integer(
        2, "Replicas in sync that the state topic needs.", kind=Kind.SHORT, low=1)
    share_coordinator_state_topic_num_partitions = integer(
        50, "Partitions of the state topic.", low=1)
    share_coordinator_state_topic_prune_interval_ms = integer(
        300_000, "How often superseded records of the state topic are deleted.", low=1,
        internal=True)
    share_coordinator_state_topic_replication_factor = integer(
        3, "Replicas of the state topic.", kind=Kind.SHORT, low=1)
    share_coordinator_state_topic_segment_bytes = integer(
        100 << 20, "The segment size of the state topic.", low=1)
    share_coordinator_write_timeout_ms = integer(
        5000, "The longest wait for the replicas of the state topic.", low=1)
    # fmt: on
