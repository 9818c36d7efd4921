"""The kinds of groups on a node; the modules of share and streams groups load on first use."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs

from kwire.clock import Clock
from kwire.coordinator.partitioning import partition_for
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.group.shard import GroupShard

if TYPE_CHECKING:
    from kwire.group.consumer.topics import Topics
    from kwire.group.share.coordinator import ShareGroups, SharePorts
    from kwire.group.streams.coordinator import StreamsGroups


@attrs.define(kw_only=True, eq=False, repr=False)
class GroupKinds:
    """The kinds of groups that have their own coordinator; all of them share one service."""

    service: CoordinatorRuntime[GroupShard]
    clock: Clock
    partitions: Callable[[], int]
    """Returns the partition count of `__consumer_offsets`, which may not have been created yet."""
    topics: "Callable[[], Topics]"
    """Returns the topics in the newest metadata, for groups whose partitions are assigned here."""
    share_ports: "Callable[[], SharePorts]"
    """Returns the parts of the node that share groups use."""
    spawn: Callable[[Callable[[], Awaitable[None]]], object]
    """Starts a task that lasts no longer than the node."""
    _share: "ShareGroups | None" = attrs.field(default=None, init=False)
    _streams: "StreamsGroups | None" = attrs.field(default=None, init=False)

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, self.partitions())

    @property
    def share(self) -> "ShareGroups":
        if self._share is None:
            from kwire.group.share.coordinator import ShareGroups

            self._share = ShareGroups(
                service=self.service,
                partition_of=self.partition_of,
                topics=self.topics,
                ports=self.share_ports(),
            )
        return self._share

    @property
    def streams(self) -> "StreamsGroups":
        if self._streams is None:
            from kwire.group.streams.coordinator import StreamsGroups

            self._streams = StreamsGroups(
                service=self.service,
                partition_of=self.partition_of,
                topics=self.topics,
                clock=self.clock,
                spawn=self.spawn,
            )
        return self._streams
