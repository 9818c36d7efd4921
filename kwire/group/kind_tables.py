"""The consumer, share or streams groups of one partition of `__consumer_offsets`, and their topics.

The modules that decide on a member read these tables; the subclass of each kind, which decides on
requests, imports those modules.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import attrs

from kwire.coordinator.decision import Record, Step
from kwire.group.consumer.topics import Topics
from kwire.group.settings import GroupSettings

G = TypeVar("G")
S = TypeVar("S")


@attrs.define(eq=False, repr=False)
class KindTables(Generic[G, S]):
    """The groups of one kind; ``G`` is a group, ``S`` the settings of one group."""

    settings: Callable[[], GroupSettings]
    settings_of: Callable[[str], S]
    """Returns the settings of a group, by its id."""
    topics: Callable[[], Topics]
    """Returns the topics in the newest metadata."""
    store: Callable[[Record], tuple[bytes, bytes | None]]
    """Encodes a record's key and value."""
    groups: dict[str, G] = attrs.field(factory=dict, init=False)
    computing: set[str] = attrs.field(factory=set, init=False)
    """The groups whose large target is being computed."""

    def is_computing(self, group_id: str) -> bool:
        """Return whether a large target of the group is being computed."""
        return group_id in self.computing

    def finish_target(self, group_id: str) -> Iterator[Step]:
        """Yield the steps that follow once a large target is installed or abandoned."""
        self.computing.discard(group_id)
        return iter(())
