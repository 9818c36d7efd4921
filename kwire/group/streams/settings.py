"""The settings of streams groups: the broker's settings, with a group's overrides."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kwire.configs.group import setting_of_group

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


class StreamsSettings(NamedTuple):
    """The settings of one streams group; the defaults are Kafka's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    initial_rebalance_delay_ms: int = 3_000
    standby_count: int = 0
    max_size: int = 2_147_483_647

    @property
    def assignment_configs(self) -> dict[str, str]:
        """The settings of the assignor, in the form of the group's record."""
        return {"num.standby.replicas": str(self.standby_count)}

    @classmethod
    def of(cls, config: "BrokerConfig", overrides: Mapping[str, str]) -> "StreamsSettings":
        """Return a group's settings; its overrides are limited to the broker's bounds."""
        limited = partial(setting_of_group, config, overrides, "streams")
        return cls(
            session_timeout_ms=limited("session.timeout.ms"),
            heartbeat_interval_ms=limited("heartbeat.interval.ms"),
            assignment_interval_ms=limited("assignment.interval.ms"),
            initial_rebalance_delay_ms=int(
                overrides.get(
                    "streams.initial.rebalance.delay.ms",
                    config.group_streams_initial_rebalance_delay_ms,
                )
            ),
            standby_count=min(
                int(
                    overrides.get(
                        "streams.num.standby.replicas", config.group_streams_num_standby_replicas
                    )
                ),
                config.group_streams_max_standby_replicas,
            ),
            max_size=config.group_streams_max_size,
        )
