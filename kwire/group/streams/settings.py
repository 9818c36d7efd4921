"""The settings of streams groups: the broker's settings, with a group's overrides."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kwire.configs.group import within_limits

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
        return cls(
            session_timeout_ms=within_limits(
                overrides,
                "streams.session.timeout.ms",
                config.group_streams_session_timeout_ms,
                config.group_streams_min_session_timeout_ms,
                config.group_streams_max_session_timeout_ms,
            ),
            heartbeat_interval_ms=within_limits(
                overrides,
                "streams.heartbeat.interval.ms",
                config.group_streams_heartbeat_interval_ms,
                config.group_streams_min_heartbeat_interval_ms,
                config.group_streams_max_heartbeat_interval_ms,
            ),
            assignment_interval_ms=within_limits(
                overrides,
                "streams.assignment.interval.ms",
                config.group_streams_assignment_interval_ms,
                config.group_streams_min_assignment_interval_ms,
                config.group_streams_max_assignment_interval_ms,
            ),
            initial_rebalance_delay_ms=int(
                overrides.get(
                    "streams.initial.rebalance.delay.ms",
                    config.group_streams_initial_rebalance_delay_ms,
                )
            ),
            standby_count=within_limits(
                overrides,
                "streams.num.standby.replicas",
                config.group_streams_num_standby_replicas,
                0,
                config.group_streams_max_standby_replicas,
            ),
            max_size=config.group_streams_max_size,
        )
