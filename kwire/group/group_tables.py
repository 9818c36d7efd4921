"""All groups in one partition of `__consumer_offsets`, by id.

The modules of consumer, share and streams groups are loaded when the first group of their kind
appears.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

from kwire.errors import GroupIdNotFound
from kwire.group.model import CONSUMER, SHARE, ClassicGroup, ProtocolChange
from kwire.group.offsets import Offsets
from kwire.group.records import is_of_consumer_group, is_of_share_group, load, store
from kwire.group.settings import GroupSettings

if TYPE_CHECKING:
    from kwire.group.consumer.model import ConsumerGroup
    from kwire.group.consumer.settings import ConsumerSettings
    from kwire.group.consumer.shard import ConsumerShard
    from kwire.group.consumer.topics import Topics
    from kwire.group.share.model import ShareGroup
    from kwire.group.share.settings import ShareSettings
    from kwire.group.share.shard import ShareShard
    from kwire.group.streams.model import StreamsGroup
    from kwire.group.streams.settings import StreamsSettings
    from kwire.group.streams.shard import StreamsShard


@attrs.define(eq=False, repr=False)
class GroupTables:
    """The groups in one partition and their offsets; the subclass `GroupShard` changes them."""

    encode = staticmethod(store)
    decode = staticmethod(load)
    new_id: Callable[[], str]
    """Returns the unique part of a new member id."""
    settings: Callable[[], GroupSettings] = GroupSettings
    """Returns the current settings."""
    topic_ids: Callable[[], Mapping[str, bytes] | None] = lambda: None
    """Returns the ids of all topics by name; None while the metadata may be outdated."""
    topics: "Callable[[], Topics]" = attrs.field(kw_only=True, default=None)
    """Returns the topics in the newest metadata, for consumer groups."""
    consumer_settings: "Callable[[str], ConsumerSettings]" = attrs.field(kw_only=True, default=None)
    """Returns the settings of a consumer group, by its id."""
    share_settings: "Callable[[str], ShareSettings]" = attrs.field(kw_only=True, default=None)
    """Returns the settings of a share group, by its id."""
    streams_settings: "Callable[[str], StreamsSettings]" = attrs.field(kw_only=True, default=None)
    """Returns the settings of a streams group, by its id."""
    on_rebalance: Callable[[str], None] = attrs.field(kw_only=True, default=lambda _: None)
    """Called with the protocol of a group after each of its rebalances, but not while loading."""
    groups: dict[str, ClassicGroup] = attrs.field(factory=dict, init=False)
    offsets: Offsets = attrs.field(factory=Offsets, init=False)
    _consumer: "ConsumerShard | None" = attrs.field(default=None, init=False)
    _share: "ShareShard | None" = attrs.field(default=None, init=False)
    _streams: "StreamsShard | None" = attrs.field(default=None, init=False)

    @property
    def consumer(self) -> "ConsumerShard":
        """The consumer groups; their modules are loaded on first use."""
        if self._consumer is None:
            from kwire.group.consumer.shard import ConsumerShard

            self._consumer = ConsumerShard(
                self.settings, self.consumer_settings, self.topics, self.encode
            )
        return self._consumer

    def consumer_group(self, group_id: str) -> "ConsumerGroup | None":
        return None if self._consumer is None else self._consumer.groups.get(group_id)

    @property
    def consumer_groups(self) -> "Iterable[ConsumerGroup]":
        return () if self._consumer is None else self._consumer.groups.values()

    @property
    def share(self) -> "ShareShard":
        """The share groups; their modules are loaded on first use."""
        if self._share is None:
            from kwire.group.share.shard import ShareShard

            self._share = ShareShard(self.settings, self.share_settings, self.topics, self.encode)
        return self._share

    def share_group(self, group_id: str) -> "ShareGroup | None":
        return None if self._share is None else self._share.groups.get(group_id)

    @property
    def share_groups(self) -> "Iterable[ShareGroup]":
        return () if self._share is None else self._share.groups.values()

    @property
    def streams(self) -> "StreamsShard":
        """The streams groups; their modules are loaded on first use."""
        if self._streams is None:
            from kwire.group.streams.shard import StreamsShard

            self._streams = StreamsShard(
                self.settings, self.streams_settings, self.topics, self.encode
            )
        return self._streams

    def streams_group(self, group_id: str) -> "StreamsGroup | None":
        return None if self._streams is None else self._streams.groups.get(group_id)

    @property
    def streams_groups(self) -> "Iterable[StreamsGroup]":
        return () if self._streams is None else self._streams.groups.values()

    def shard_of(self, key: object) -> "ConsumerShard | ShareShard | StreamsShard":
        """Return the shard that a record's key belongs to; keys of classic groups have none."""
        if is_of_consumer_group(key):
            return self.consumer
        return self.share if is_of_share_group(key) else self.streams

    def of_kind(self, kind: str) -> "ConsumerShard | ShareShard | StreamsShard":
        """Return the groups of one kind, other than classic groups."""
        if kind == CONSUMER:
            return self.consumer
        return self.share if kind == SHARE else self.streams

    def committing_group(self, group_id: str) -> "ConsumerGroup | StreamsGroup | None":
        """Return the consumer group or streams group with this id."""
        return self.consumer_group(group_id) or self.streams_group(group_id)

    def assigned_group(self, group_id: str) -> "ConsumerGroup | ShareGroup | StreamsGroup | None":
        """Return the group with this id, unless it is a classic group."""
        return self.committing_group(group_id) or self.share_group(group_id)

    def has_group(self, group_id: str) -> bool:
        """Return whether a group of any kind has this id."""
        return group_id in self.groups or self.assigned_group(group_id) is not None

    def no_group(self, group_id: str, kind: str) -> GroupIdNotFound:
        """Return the error of a request about a group of this kind."""
        problem = f"is not a {kind} group" if self.has_group(group_id) else "not found"
        return GroupIdNotFound(f"Group {group_id} {problem}.")

    @property
    def assigned_groups(self) -> "Iterator[ConsumerGroup | ShareGroup | StreamsGroup]":
        """All groups but the classic ones."""
        yield from self.consumer_groups
        yield from self.share_groups
        yield from self.streams_groups

    @property
    def has_groups(self) -> bool:
        """True if there is a group whose offsets may expire."""
        return bool(self.groups) or bool(self.consumer_groups) or bool(self.streams_groups)

    def change_protocol(self, change: ProtocolChange) -> None:
        """Replace a classic group with a consumer group, or remove a consumer group."""
        if change.consumer is None:
            self.consumer.groups.pop(change.group_id, None)
        else:
            self.groups.pop(change.group_id, None)
            self.consumer.groups[change.group_id] = change.consumer
