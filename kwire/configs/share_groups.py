"""The broker's settings of share groups (KIP-932), a part of its table."""

from kwire.configs.declare import Config, Scope, integer, strings


class ShareGroupConfig(Config):
    """The settings whose names begin with `group.share`."""

    # fmt: off
    group_share_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a share group.", low=0,
        scope=Scope.CLUSTER_WIDE)
    group_share_assignors = strings(
        ("simple",), "The assignor of share groups.", choices=("simple",), filled=True)
    group_share_heartbeat_interval_ms = integer(
        5000, "How often members of share groups send heartbeats.", low=1)
    group_share_initialize_retry_interval_ms = integer(
        30000, "How long the initialization of share partitions may take before it is repeated.",
        low=1, internal=True)
    group_share_max_assignment_interval_ms = integer(
        15000, "The longest such interval of a single group.", low=0)
    group_share_max_heartbeat_interval_ms = integer(
        15000, "The longest heartbeat interval of a single group.", low=1)
    group_share_max_session_timeout_ms = integer(
        60000, "The longest session timeout of a single share group.", low=1)
    group_share_max_size = integer(200, "Members of one share group.", low=1, high=1000)
    group_share_min_assignment_interval_ms = integer(
        0, "The shortest such interval of a single group.", low=0)
    group_share_min_heartbeat_interval_ms = integer(
        5000, "The shortest heartbeat interval of a single group.", low=1)
    group_share_min_session_timeout_ms = integer(
        45000, "The shortest session timeout of a single share group.", low=1)
    group_share_session_timeout_ms = integer(
        45000, "How long a member of a share group may be silent.", low=1)
    # fmt: on
