"""The partition counts of a topology's repartition topics.

A subtopology may write to topics that another one reads, so the counts depend on each other. The
rules are those of Apache Kafka, which visits all writers in rounds, each time in the order of the
subtopologies. As soon as the count of one of a writer's sources is known, the topic gets the
largest known count of these sources. Here, a writer is visited only in the round in which Kafka
would decide, so that the time grows only linearly with the length of a chain.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import attrs

from kwire.errors import StreamsInvalidTopology
from kwire.group.streams.topology import Subtopology


def decide_counts(
    subtopologies: Sequence[Subtopology], count_of: Callable[[str], int | None]
) -> dict[str, int]:
    """Return the partition counts of all repartition topics; raises StreamsInvalidTopology.

    ``count_of`` returns the partition count of a source topic; None if the topic does not exist.
    """
    return _Rounds(subtopologies).run(count_of)


@attrs.define(eq=False, repr=False)
class _Rounds:
    subtopologies: Sequence[Subtopology]
    counts: dict[str, int] = attrs.field(init=False, factory=dict)
    _sinks: list[tuple[str, int]] = attrs.field(init=False, factory=list)
    """The topics to decide on with their writers, in the order of the visits of a round."""
    _sinks_of: list[range] = attrs.field(init=False, factory=list)
    """The positions of each subtopology's topics in :attr:`_sinks`."""
    _widest: list[int] = attrs.field(init=False)
    """The largest known count that each subtopology reads; 0 while none is known."""
    _visits: list[tuple[int, int]] = attrs.field(init=False, factory=list)
    """A heap of the visits that decide: the round, and the position in :attr:`_sinks`."""

    def __attrs_post_init__(self) -> None:
        self._widest = [0] * len(self.subtopologies)
        for number, each in enumerate(self.subtopologies):
            first = len(self._sinks)
            self._sinks += [(name, number) for name in each.repartition_sink_topics]
            self._sinks_of.append(range(first, len(self._sinks)))

    def run(self, count_of: Callable[[str], int | None]) -> dict[str, int]:
        counts, before_all = self.counts, (0, len(self._sinks))
        readers: defaultdict[str, list[int]] = defaultdict(list)
        for number, each in enumerate(self.subtopologies):
            for topic in each.repartition_source_topics:
                readers[topic.name].append(number)
                if topic.partitions:
                    counts[topic.name] = topic.partitions
            for name in each.source_topics:
                self._on_known(number, count_of(name) or 0, before_all)
        for name, count in counts.items():
            for number in readers[name]:
                self._on_known(number, count, before_all)
        while self._visits:
            visit = heappop(self._visits)
            name, writer = self._sinks[visit[1]]
            if name not in counts:
                count = counts[name] = self._widest[writer]
                for number in readers[name]:
                    self._on_known(number, count, visit)
        self._check(readers)
        return counts

    def _on_known(self, number: int, count: int, visit: tuple[int, int]) -> None:
        """Add a source's count, which a visit has just determined, to a subtopology's counts."""
        if count and not self._widest[number]:
            turn, position = visit
            for sink in self._sinks_of[number]:
                heappush(self._visits, (turn + (sink <= position), sink))
        self._widest[number] = max(self._widest[number], count)

    def _check(self, readers: dict[str, list[int]]) -> None:
        if any(name not in self.counts for name, _ in self._sinks):
            raise StreamsInvalidTopology(
                "Failed to compute number of partitions for all repartition topics. There may "
                "be loops in the topology that cannot be resolved."
            )
        if any(name not in self.counts for name in readers):
            raise StreamsInvalidTopology(
                "Failed to compute number of partitions for all repartition topics, because a "
                "repartition source topic is never used as a sink topic."
            )
