"""The broker's settings for share groups (KIP-932), a part of its table.

They concern members, the partitions in flight, and the coordinator of stored states.
"""

from typing import Final

from kwire.configs.declare import Config, Kind, Scope, integer, strings

LIMITED: Final = ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms")
"""The settings of a group that the broker's settings limit, without their prefixes."""


class ShareConfig(Config):
    """The settings whose names begin with `group.share` and `share.coordinator`."""

    # fmt: off
    group_share_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a share group.", low=0,
        scope=Scope.CLUSTER_WIDE)
    group_share_assignors = strings(
        ("simple",), "The assignor of share groups.", choices=("simple",), filled=True)
    group_share_delivery_count_limit = integer(
        5, "How often a record is delivered to a share group before it is archived.",
        low=2, high=10)
    group_share_heartbeat_interval_ms = integer(
        5000, "How often members of share groups send heartbeats.", low=1)
    group_share_initialize_retry_interval_ms = integer(
        30000, "How long the initialization of share partitions may take before it is repeated.",
        low=1, internal=True)
    group_share_max_assignment_interval_ms = integer(
        15000, "The longest assignment interval that a single group may set.", low=0)
    group_share_max_delivery_count_limit = integer(
        10, "The highest delivery limit that a single group may set.", low=5, high=25)
    group_share_max_heartbeat_interval_ms = integer(
        15000, "The longest heartbeat interval of a single group.", low=1)
    group_share_max_partition_max_record_locks = integer(
        4000, "The most records in flight that a single group may set.", low=2000, high=10000)
    group_share_max_record_lock_duration_ms = integer(
        60000, "The longest lock that a single group may set.", low=30000, high=3600000)
    group_share_max_session_timeout_ms = integer(
        60000, "The longest session timeout of a single share group.", low=1)
    group_share_max_share_sessions = integer(
        2000, "Share sessions of this broker: one for each member that fetches from it.", low=1)
    group_share_max_size = integer(200, "Members of one share group.", low=1, high=1000)
    group_share_min_assignment_interval_ms = integer(
        0, "The shortest assignment interval that a single group may set.", low=0)
    group_share_min_delivery_count_limit = integer(
        2, "The lowest delivery limit that a single group may set.", low=2, high=5)
    group_share_min_heartbeat_interval_ms = integer(
        5000, "The shortest heartbeat interval of a single group.", low=1)
    group_share_min_partition_max_record_locks = integer(
        100, "The fewest records in flight that a single group may set.", low=100, high=2000)
    group_share_min_record_lock_duration_ms = integer(
        15000, "The shortest lock that a single group may set.", low=1000, high=30000)
    group_share_min_session_timeout_ms = integer(
        45000, "The shortest session timeout of a single share group.", low=1)
    group_share_partition_max_record_locks = integer(
        2000, "Records of one partition that are in flight to a share group.",
        low=100, high=10000)
    group_share_record_lock_duration_ms = integer(
        30000, "How long a member of a share group may hold a record before another gets it.",
        low=1000, high=3600000)
    group_share_session_timeout_ms = integer(
        45000, "How long a member of a share group may be silent.", low=1)
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
