"""The settings of a group."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kwire.configs.declare import Config, ConfigError, boolean, integer, string
from kwire.configs.share_partitions import LIMITED, check_reset

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


class GroupConfig(Config):
    """The settings of a group: DescribeConfigs's GROUP resource."""

    # fmt: off
    consumer_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a consumer group.", low=0)
    consumer_heartbeat_interval_ms = integer(
        5000, "How often members of a consumer group send heartbeats.", low=1)
    consumer_session_timeout_ms = integer(
        45000, "How long a member of a consumer group may be silent.", low=1)
    share_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a share group.", low=0)
    share_auto_offset_reset = string(
        "latest", "Where a share group begins: earliest, latest or by_duration:<PnDTnHnMn.nS>.",
        check=check_reset)
    share_delivery_count_limit = integer(
        5, "How often a record is delivered before it is archived.", low=2)
    share_heartbeat_interval_ms = integer(
        5000, "How often members of a share group send heartbeats.", low=1)
    share_isolation_level = string(
        "read_uncommitted", "Whether a share group gets records of open and aborted transactions.",
        choices=("read_committed", "read_uncommitted"))
    share_partition_max_record_locks = integer(
        2000, "Records of one partition that are in flight to a share group.", low=100)
    share_record_lock_duration_ms = integer(
        30000, "How long a member may hold a record before another gets it.", low=1000)
    share_renew_acknowledge_enable = boolean(True, "Whether members may renew their locks.")
    share_session_timeout_ms = integer(
        45000, "How long a member of a share group may be silent.", low=1)
    streams_assignment_interval_ms = integer(
        1000, "The shortest time between two assignments of a streams group.", low=0)
    streams_heartbeat_interval_ms = integer(
        5000, "How often members of a streams group send heartbeats.", low=1)
    streams_initial_rebalance_delay_ms = integer(
        3000, "How long the first assignment of a streams group waits for further members.", low=0)
    streams_num_standby_replicas = integer(
        0, "Standby tasks of each task that keeps state.", low=0)
    streams_session_timeout_ms = integer(
        45000, "How long a member of a streams group may be silent.", low=1)
    # fmt: on


def check_group_config(settings: Mapping[str, str], broker: "BrokerConfig") -> None:
    """Reject settings of a group that are outside the bounds of the broker's settings."""
    _check_limits(settings, broker)
    for kind in ("consumer", "share", "streams"):
        _check_intervals(kind, settings, broker)
    standby_count = settings.get("streams.num.standby.replicas")
    if standby_count is not None and int(standby_count) > broker.group_streams_max_standby_replicas:
        raise ConfigError(
            "streams.num.standby.replicas must be less than or equal to "
            "group.streams.max.standby.replicas"
        )


def _check_intervals(kind: str, settings: Mapping[str, str], broker: "BrokerConfig") -> None:
    values: dict[str, int] = {}
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        key = f"{kind}.{name}"
        if key not in settings:
            values[name] = broker.raw_integer(f"group.{kind}.{name}")
            continue
        values[name] = int(settings[key])
        if values[name] < broker.raw_integer(f"group.{kind}.min.{name}"):
            raise ConfigError(f"{key} must be greater than or equal to group.{kind}.min.{name}")
        if values[name] > broker.raw_integer(f"group.{kind}.max.{name}"):
            raise ConfigError(f"{key} must be less than or equal to group.{kind}.max.{name}")
    if values["session.timeout.ms"] <= values["heartbeat.interval.ms"]:
        raise ConfigError(
            f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms"
        )


def _check_limits(settings: Mapping[str, str], broker: "BrokerConfig") -> None:
    """Reject settings of share partitions that are outside the bounds of the broker's settings."""
    for name in LIMITED:
        if f"share.{name}" not in settings:
            continue
        value = int(settings[f"share.{name}"])
        low, high = f"group.share.min.{name}", f"group.share.max.{name}"
        if value < broker.raw_integer(low):
            raise ConfigError(f"share.{name} must be greater than or equal to {low}")
        if value > broker.raw_integer(high):
            raise ConfigError(f"share.{name} must be less than or equal to {high}")


def within_limits(
    overrides: Mapping[str, str], name: str, default: int, low: int, high: int
) -> int:
    """Return a group's override, kept within the broker's limits, or the broker's setting."""
    text = overrides.get(name)
    return default if text is None else min(max(int(text), low), high)
