"""The settings of a group."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kwire.configs.declare import Config, ConfigError, boolean, integer, string
from kwire.configs.share import LIMITED

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig

_NUMBER: Final = r"([-+]?\d{1,19})"
_DURATION: Final = re.compile(
    rf"([-+]?)P(?=.)(?:{_NUMBER}D)?"
    rf"(?:T(?=.)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}(?:[.,](\d{{0,9}}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SECOND_NS: Final = 1_000_000_000
_LONGEST_S: Final = 2**63 - 1
_BY_DURATION: Final = "by_duration:"


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of a duration such as P3DT4H5M6.5S; None if it is invalid.

    It is what Java's `Duration.parse` takes, which Kafka uses, without negative durations.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups()
    total_s = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes or 0) * 60
    total_s += int(seconds or 0)
    nanos = int((fraction or "").ljust(9, "0"))
    total_ns = total_s * _SECOND_NS + (-nanos if (seconds or "").startswith("-") else nanos)
    total_ns = -total_ns if sign == "-" else total_ns
    return total_ns // 1_000_000 if 0 <= total_ns // _SECOND_NS <= _LONGEST_S else None


def reset_age_ms(reset: str) -> int | None:
    """Return how far back a duration in `share.auto.offset.reset` reaches; None for others."""
    prefix, duration = reset[: len(_BY_DURATION)], reset[len(_BY_DURATION) :]
    return duration_ms(duration) if prefix == _BY_DURATION else None


def check_reset(reset: str) -> str | None:
    """Return the error text for an invalid `share.auto.offset.reset`."""
    if reset in ("earliest", "latest") or reset_age_ms(reset) is not None:
        return None
    return (
        f"Invalid value {reset} for configuration share.auto.offset.reset: must be 'earliest', "
        "'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'"
    )


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
    for name in LIMITED:
        _value_in_limits(settings, broker, "share", name)
    for kind in ("consumer", "share", "streams"):
        session_timeout_ms = _value_in_limits(settings, broker, kind, "session.timeout.ms")
        heartbeat_interval_ms = _value_in_limits(settings, broker, kind, "heartbeat.interval.ms")
        _value_in_limits(settings, broker, kind, "assignment.interval.ms")
        if session_timeout_ms <= heartbeat_interval_ms:
            raise ConfigError(
                f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms"
            )
    standby_count = settings.get("streams.num.standby.replicas")
    if standby_count is not None and int(standby_count) > broker.group_streams_max_standby_replicas:
        raise ConfigError(
            "streams.num.standby.replicas must be less than or equal to "
            "group.streams.max.standby.replicas"
        )


def _value_in_limits(
    settings: Mapping[str, str], broker: "BrokerConfig", kind: str, name: str
) -> int:
    """Return a group's setting, or the broker's; reject one outside the broker's limits."""
    key = f"{kind}.{name}"
    if key not in settings:
        return broker.raw_integer(f"group.{key}")
    value = int(settings[key])
    low, high = f"group.{kind}.min.{name}", f"group.{kind}.max.{name}"
    if value < broker.raw_integer(low):
        raise ConfigError(f"{key} must be greater than or equal to {low}")
    if value > broker.raw_integer(high):
        raise ConfigError(f"{key} must be less than or equal to {high}")
    return value


def setting_of_group(
    broker: "BrokerConfig", overrides: Mapping[str, str], kind: str, name: str
) -> int:
    """Return a group's override of ``kind.name`` within the broker's limits, or its setting."""
    text = overrides.get(f"{kind}.{name}")
    if text is None:
        return broker.integer(f"group.{kind}.{name}")
    low, high = (broker.integer(f"group.{kind}.{limit}.{name}") for limit in ("min", "max"))
    return min(max(int(text), low), high)
