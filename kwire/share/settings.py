"""The settings of one share group: the broker's settings, with the group's overrides."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kwire.configs.group import setting_of_group

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


class ShareSettings(NamedTuple):
    """The settings that the leader of a share partition applies; the defaults are Kafka's."""

    lock_ms: int = 30_000
    max_deliveries: int = 5
    max_in_flight: int = 2_000
    """The most records between the start and the end of a share partition."""
    reset: str = "latest"
    """`share.auto.offset.reset`: where the group begins in a partition."""
    reads_committed: bool = False
    may_renew: bool = True

    @property
    def lock_s(self) -> float:
        return self.lock_ms / 1000

    @classmethod
    def of(cls, config: "BrokerConfig", overrides: Mapping[str, str]) -> "ShareSettings":
        """Return a group's settings; its overrides are limited to the broker's bounds."""
        limited = partial(setting_of_group, config, overrides, "share")
        return cls(
            lock_ms=limited("record.lock.duration.ms"),
            max_deliveries=limited("delivery.count.limit"),
            max_in_flight=limited("partition.max.record.locks"),
            reset=overrides.get("share.auto.offset.reset", "latest"),
            reads_committed=overrides.get("share.isolation.level") == "read_committed",
            may_renew=overrides.get("share.renew.acknowledge.enable", "true") == "true",
        )
