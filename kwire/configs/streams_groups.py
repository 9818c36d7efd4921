"""The broker's settings of streams groups (KIP-1071), a part of its table."""

from typing import Final

from kwire.configs.declare import Config, Scope, integer

_INT_MAX: Final = 2**31 - 1


class StreamsGroupConfig(Config):
    """The settings whose names begin with `group.streams`."""

    # fmt: off
    group_streams_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a streams group.", low=0,
        scope=Scope.CLUSTER_WIDE)
    group_streams_heartbeat_interval_ms = integer(
        5000, "How often members of streams groups send heartbeats.", low=1)
    group_streams_initial_rebalance_delay_ms = integer(
        3000, "How long the first assignment of a streams group waits for further members.", low=0)
    group_streams_max_assignment_interval_ms = integer(
        15000, "The longest assignment interval that a single group may set.", low=0)
    group_streams_max_heartbeat_interval_ms = integer(
        15000, "The longest heartbeat interval of a single group.", low=1)
    group_streams_max_session_timeout_ms = integer(
        60000, "The longest session timeout of a single streams group.", low=1)
    group_streams_max_size = integer(_INT_MAX, "Members of one streams group.", low=1)
    group_streams_max_standby_replicas = integer(
        2, "The most standby tasks that a single group may have of each task.", low=0)
    group_streams_min_assignment_interval_ms = integer(
        0, "The shortest assignment interval that a single group may set.", low=0)
    group_streams_min_heartbeat_interval_ms = integer(
        5000, "The shortest heartbeat interval of a single group.", low=1)
    group_streams_min_session_timeout_ms = integer(
        45000, "The shortest session timeout of a single streams group.", low=1)
    group_streams_num_standby_replicas = integer(
        0, "Standby tasks of each task that keeps state.", low=0)
    group_streams_session_timeout_ms = integer(
        45000, "How long a member of a streams group may be silent.", low=1)
    # fmt: on
