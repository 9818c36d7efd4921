"""The settings of a single group, by its kind; their modules are loaded on first use."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig
    from kwire.group.consumer.settings import ConsumerSettings
    from kwire.group.share.settings import ShareSettings
    from kwire.group.streams.settings import StreamsSettings


@attrs.define(eq=False, repr=False)
class KindSettings:
    """The broker's settings, and the settings that a group overrides."""

    config: "Callable[[], BrokerConfig]"
    overrides: Callable[[str], Mapping[str, str]]
    """Returns the settings of a group that differ from the broker's, by the group's id."""

    _usual: "tuple[BrokerConfig, ConsumerSettings] | None" = attrs.field(default=None, init=False)
    """The settings of consumer groups without overrides, which each heartbeat needs."""

    def consumer(self, group_id: str) -> "ConsumerSettings":
        config, overrides = self.config(), self.overrides(group_id)
        if self._usual is not None and self._usual[0] is config and not overrides:
            return self._usual[1]
        from kwire.group.consumer.settings import ConsumerSettings

        settings = ConsumerSettings.of(config, overrides)
        if not overrides:
            self._usual = config, settings
        return settings

    def share(self, group_id: str) -> "ShareSettings":
        from kwire.group.share.settings import ShareSettings

        return ShareSettings.of(self.config(), self.overrides(group_id))

    def streams(self, group_id: str) -> "StreamsSettings":
        from kwire.group.streams.settings import StreamsSettings

        return StreamsSettings.of(self.config(), self.overrides(group_id))
