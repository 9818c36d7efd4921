"""The broker's settings of consumer groups (KIP-848), a part of its table."""

from typing import Final

from kwire.configs.declare import INT_MAX, Config, Scope, integer, string, strings

_POLICIES: Final = ("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL")


def _migration_policy(name: str) -> str | None:
    if name.upper() in _POLICIES:
        return None
    return f"String must be one of (case insensitive): {', '.join(_POLICIES)}"


class ConsumerGroupConfig(Config):
    """The settings whose names begin with `group.consumer`."""

    # fmt: off
    group_consumer_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a consumer group.", low=0,
        scope=Scope.CLUSTER_WIDE)
    group_consumer_assignors = strings(
        ("uniform", "range"), "The assignors of consumer groups; the first is the default.",
        choices=("uniform", "range"), filled=True)
    group_consumer_heartbeat_interval_ms = integer(
        5000, "How often members of consumer groups send heartbeats.", low=1)
    group_consumer_max_assignment_interval_ms = integer(
        15000, "The longest assignment interval that a single group may set.", low=0)
    group_consumer_max_heartbeat_interval_ms = integer(
        15000, "The longest heartbeat interval of a single group.", low=1)
    group_consumer_max_session_timeout_ms = integer(
        60000, "The longest session timeout of a single consumer group.", low=1)
    group_consumer_max_size = integer(INT_MAX, "Members of one consumer group.", low=1)
    group_consumer_migration_policy = string(
        "bidirectional", "Whether groups with members may change the protocol: disabled, upgrade, "
        "downgrade or bidirectional.", check=_migration_policy)
    group_consumer_min_assignment_interval_ms = integer(
        0, "The shortest assignment interval that a single group may set.", low=0)
    group_consumer_min_heartbeat_interval_ms = integer(
        5000, "The shortest heartbeat interval of a single group.", low=1)
    group_consumer_min_session_timeout_ms = integer(
        45000, "The shortest session timeout of a single consumer group.", low=1)
    group_consumer_regex_refresh_interval_ms = integer(
        600_000, "How often regular expressions are matched again.", low=10_000, internal=True)
    group_consumer_session_timeout_ms = integer(
        45000, "How long a member of a consumer group may be silent.", low=1)
    # fmt: on
