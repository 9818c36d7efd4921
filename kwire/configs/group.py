"""The settings of a group, and of a client-metrics subscription."""

from kwire.configs.declare import Config, boolean, integer, string, strings


class GroupConfig(Config):
    """The settings of a group: DescribeConfigs's GROUP resource."""

    # fmt: off
    consumer_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a consumer group.", low=0)
    consumer_heartbeat_interval_ms = integer(
        5000, "How often members of a consumer group send heartbeats.", low=1)
    consumer_session_timeout_ms = integer(
        45000, "How long a member of a consumer group may be silent.", low=1)
    share_assignment_interval_ms = integer(1000, effective=False, low=0)
    share_auto_offset_reset = string("latest", effective=False)
    share_delivery_count_limit = integer(5, effective=False, low=2)
    share_heartbeat_interval_ms = integer(5000, effective=False, low=1)
    share_isolation_level = string(
        "read_uncommitted", effective=False, choices=("read_committed", "read_uncommitted")
    )
    share_partition_max_record_locks = integer(2000, effective=False, low=100)
    share_record_lock_duration_ms = integer(30000, effective=False, low=1000)
    share_renew_acknowledge_enable = boolean(True, effective=False)
    share_session_timeout_ms = integer(45000, effective=False, low=1)
    streams_assignment_interval_ms = integer(1000, effective=False, low=0)
    streams_heartbeat_interval_ms = integer(5000, effective=False, low=1)
    streams_initial_rebalance_delay_ms = integer(3000, effective=False, low=0)
    streams_num_standby_replicas = integer(0, effective=False, low=0)
    streams_session_timeout_ms = integer(45000, effective=False, low=1)
    # fmt: on


class ClientMetricsConfig(Config):
    """The settings of a client-metrics subscription: DescribeConfigs's CLIENT_METRICS resource."""

    interval_ms = integer(
        300_000, "How often clients send.", low=100, high=3_600_000, effective=False
    )
    match = strings((), "Which clients, as name=pattern.", effective=False)
    metrics = strings((), "Which metrics, by prefix.", effective=False)
