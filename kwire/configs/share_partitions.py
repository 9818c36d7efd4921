"""The broker's settings of share partitions (KIP-932), which are part of its table."""

import re
from typing import Final

from kwire.configs.declare import Config, integer

LIMITED: Final = ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms")
"""The settings of a group that the broker's settings limit, without their prefixes."""
_DURATION: Final = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.ASCII
)
_BY_DURATION: Final = "by_duration:"


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of a duration such as P3DT4H5M6.5S; None if it is invalid."""
    match = _DURATION.fullmatch(text.upper())
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


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


class SharePartitionConfig(Config):
    """The settings `group.share.*` that leaders of partitions apply."""

    # fmt: off
    group_share_delivery_count_limit = integer(
        5, "How often a record is delivered to a share group before it is archived.",
        low=2, high=10)
    group_share_max_delivery_count_limit = integer(
        10, "The highest such limit of a single group.", low=5, high=25)
    group_share_max_partition_max_record_locks = integer(
        4000, "The most records in flight that a single group may set.", low=2000, high=10000)
    group_share_max_record_lock_duration_ms = integer(
        60000, "The longest lock that a single group may set.", low=30000, high=3600000)
    group_share_max_share_sessions = integer(
        2000, "Share sessions of this broker: one for each member that fetches from it.", low=1)
    group_share_min_delivery_count_limit = integer(
        2, "The lowest delivery limit of a single group.", low=2, high=5)
    group_share_min_partition_max_record_locks = integer(
        100, "The fewest records in flight that a single group may set.", low=100, high=2000)
    group_share_min_record_lock_duration_ms = integer(
        15000, "The shortest lock that a single group may set.", low=1000, high=30000)
    group_share_partition_max_record_locks = integer(
        2000, "Records of one partition that are in flight to a share group.",
        low=100, high=10000)
    group_share_record_lock_duration_ms = integer(
        30000, "How long a member of a share group may hold a record before another gets it.",
        low=1000, high=3600000)
    # fmt: on
