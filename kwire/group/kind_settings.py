"""The settings of a single group, by its kind; their modules are loaded on first use."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig
    from kwire.group.consumer.settings import ConsumerSettings
    from kwire.group.share.settings import ShareSettings
    from kwire.group.streams.settings import StreamsSettings


@attrs.frozen(eq=False, repr=False)
class KindSettings:
    """The broker's settings, and the settings that a group overrides."""

    config: "Callable[[], BrokerConfig]"
    overrides: Callable[[str], Mapping[str, str]]
    """Returns the settings of a group that differ from the broker's, by the group's id."""

    def consumer(self, group_id: str) -> "ConsumerSettings":
        from kwire.group.consumer.settings import ConsumerSettings

        return ConsumerSettings.of(self.config(), self.overrides(group_id))

    def share(self, group_id: str) -> "ShareSettings":
        from kwire.group.share.settings import ShareSettings

        return ShareSettings.of(self.config(), self.overrides(group_id))

    def streams(self, group_id: str) -> "StreamsSettings":
        from kwire.group.streams.settings import StreamsSettings

        return StreamsSettings.of(self.config(), self.overrides(group_id))
