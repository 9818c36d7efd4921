"""The settings of groups, under Kafka's names."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


@attrs.frozen(kw_only=True, repr=False)
class GroupSettings:
    """The settings of groups, from the broker's configuration; the defaults are Kafka's."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2_147_483_647
    new_member_join_timeout_ms: int = 300_000
    """The longest wait of a member that joins for the first time; fixed, as in Kafka."""
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    max_pending_members: int = 10_000
    """The largest number of unused member ids per group; this limit is kwire's own."""

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @classmethod
    def of(cls, config: "BrokerConfig") -> "GroupSettings":
        """Return the settings of the broker's configuration."""
        return cls(
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_max_size=config.group_max_size,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_minutes=config.offsets_retention_minutes,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            offsets_topic_num_partitions=config.offsets_topic_num_partitions,
        )


def follow_config(config: "Callable[[], BrokerConfig]") -> Callable[[], GroupSettings]:
    """Return a getter for the settings, which rebuilds them when the configuration changes."""
    last_config = config()
    settings = GroupSettings.of(last_config)

    def current_settings() -> GroupSettings:
        nonlocal last_config, settings
        current_config = config()
        if current_config is not last_config:
            last_config, settings = current_config, GroupSettings.of(current_config)
        return settings

    return current_settings
