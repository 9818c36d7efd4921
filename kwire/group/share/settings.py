"""The settings of share groups: the broker's settings, with a group's overrides."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kwire.configs.group import setting_of_group

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


class ShareSettings(NamedTuple):
    """The settings of one share group; the defaults are Kafka's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 200
    assignor: str = "simple"
    initialize_retry_interval_ms: int = 30_000

    @classmethod
    def of(cls, config: "BrokerConfig", overrides: Mapping[str, str]) -> "ShareSettings":
        """Return a group's settings; its overrides are limited to the broker's bounds."""
        limited = partial(setting_of_group, config, overrides, "share")
        return cls(
            session_timeout_ms=limited("session.timeout.ms"),
            heartbeat_interval_ms=limited("heartbeat.interval.ms"),
            assignment_interval_ms=limited("assignment.interval.ms"),
            max_size=config.group_share_max_size,
            assignor=config.group_share_assignors[0],
            initialize_retry_interval_ms=max(
                config.group_share_initialize_retry_interval_ms, config.offsets_commit_timeout_ms
            ),
        )
