"""The settings of consumer groups: the broker's settings, with a group's overrides."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kwire.configs.group import setting_of_group

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


class ConsumerSettings(NamedTuple):
    """The settings of one consumer group; the defaults are Kafka's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2_147_483_647
    assignors: tuple[str, ...] = ("uniform", "range")
    """The names of the assignors that members may choose; the first is the default."""
    migration_policy: str = "bidirectional"
    classic_max_size: int = 2_147_483_647
    regex_refresh_interval_ms: int = 600_000

    @property
    def may_upgrade(self) -> bool:
        """True if a classic group may become a consumer group while it has members."""
        return self.migration_policy.lower() in ("upgrade", "bidirectional")

    @property
    def may_downgrade(self) -> bool:
        """True if a consumer group may become a classic group while it has members."""
        return self.migration_policy.lower() in ("downgrade", "bidirectional")

    @property
    def may_migrate(self) -> bool:
        """True if members of both protocols may be in one group."""
        return self.migration_policy.lower() != "disabled"

    @classmethod
    def of(cls, config: "BrokerConfig", overrides: Mapping[str, str]) -> "ConsumerSettings":
        """Return a group's settings; its overrides are limited to the broker's bounds."""
        limited = partial(setting_of_group, config, overrides, "consumer")
        return cls(
            session_timeout_ms=limited("session.timeout.ms"),
            heartbeat_interval_ms=limited("heartbeat.interval.ms"),
            assignment_interval_ms=limited("assignment.interval.ms"),
            max_size=config.group_consumer_max_size,
            assignors=config.group_consumer_assignors,
            migration_policy=config.group_consumer_migration_policy,
            classic_max_size=config.group_max_size,
            regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        )
