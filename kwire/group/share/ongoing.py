"""The share partitions whose state this node is initializing, each one once at a time.

An initialization may take longer than the interval after which heartbeats repeat it, because the
persister retries. If two of them were under way, members could get a partition and accept records
when the first one ends; the second one, whose epoch may be higher, would then replace the state. An
alteration of offsets initializes state too.
"""

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kwire.group.share.shard import Initialization


@attrs.define(eq=False, repr=False)
class Initializations:
    """The initializations in progress on this node."""

    _numbers: dict[tuple[str, bytes], frozenset[int]] = attrs.field(factory=dict, init=False)
    """The partitions by group and topic; whole sets, as a topic may have thousands."""

    def begin(self, work: "Initialization") -> "Initialization":
        """Return the part of the work that is not in progress; it is in progress from now on."""
        numbers = {}
        for topic_id, each in work.numbers.items():
            key = (work.group_id, topic_id)
            in_progress = self._numbers.get(key, frozenset())
            new = each - in_progress
            if new:
                numbers[topic_id] = new
                self._numbers[key] = in_progress | new
        return work._replace(numbers=numbers)

    def end(self, work: "Initialization") -> None:
        """Note that the work, which :meth:`begin` returned, is over."""
        for topic_id, each in work.numbers.items():
            key = (work.group_id, topic_id)
            in_progress = self._numbers[key] - each
            if in_progress:
                self._numbers[key] = in_progress
            else:
                del self._numbers[key]
