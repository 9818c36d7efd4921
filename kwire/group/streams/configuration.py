"""Matches a topology with the existing topics, which determine the tasks and the topics to create.

A repartition topic whose partition count the application does not set gets that of the topics read
by the subtopology that writes it; copartitioned topics must have equal counts; changelogs have one
partition for each task. The rules are Apache Kafka's. If topics are missing or do not match, the
topology is not ready, and its members have no tasks until the topics change.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import attrs

from kwire.errors import StreamsInvalidTopology
from kwire.group.consumer.topics import Topics
from kwire.group.streams.repartition import decide_counts
from kwire.group.streams.topology import Subtopology, Topology, source_names

_SHOWN: Final = 3
"""The number of topics that a message names."""


class StatusCode(IntEnum):
    """The codes of the conditions that a heartbeat's response reports to the member."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """One condition, with its text for the member's log."""

    code: StatusCode
    text: str


class InternalTopic(NamedTuple):
    """A topic that the coordinator has to create for the application."""

    name: str
    partition_count: int
    replication_factor: int
    """-1 for the cluster's default."""
    configs: tuple[tuple[str, str], ...]


@attrs.frozen(eq=False, repr=False)
class Configuration:
    """The result of matching a topology with the existing topics."""

    task_counts: Mapping[str, int]
    """By subtopology id; empty if a problem prevents them from being known."""
    partition_counts: Mapping[str, int]
    """The partition counts of the internal topics, by name."""
    missing: Sequence[InternalTopic]
    """Internal topics that have to be created."""
    problem: Status | None
    """The reason why the topology is not ready."""

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _Problem(Exception):
    """The existing topics do not match the topology."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = Status(code, text)


def configuring(topology: Topology, topics: Topics) -> Generator[None, None, Configuration]:
    """Find the topics of a topology, as steps; raises StreamsInvalidTopology."""
    try:
        return (yield from _Configuring(topology, topics).configuring())
    except _Problem as problem:
        return Configuration({}, {}, (), problem.status)


@attrs.define(eq=False, repr=False)
class _Configuring:
    topology: Topology
    topics: Topics
    decided: dict[str, int] = attrs.field(factory=dict)
    """The decided partition counts of internal topics."""

    repartition: frozenset[str] = attrs.field(init=False)
    """The names of all repartition topics."""
    fixed: frozenset[str] = attrs.field(init=False)
    """The repartition topics whose partition count the application has chosen."""

    def __attrs_post_init__(self) -> None:
        topics = [t for each in self._subtopologies for t in each.repartition_source_topics]
        self.repartition = frozenset(topic.name for topic in topics)
        self.fixed = frozenset(topic.name for topic in topics if topic.partitions)

    def configuring(self) -> Generator[None, None, Configuration]:
        subtopologies = self.topology.subtopologies
        self._check_sources()
        self.decided.update(decide_counts(list(subtopologies.values()), self._count))
        for subtopology in subtopologies.values():
            for group in dict.fromkeys(_copartition_groups(subtopology)):
                self._align(group)
            yield
        tasks: dict[str, int] = {}
        for subtopology_id, subtopology in subtopologies.items():
            tasks[subtopology_id] = self._task_count(subtopology)
            changelogs = [topic.name for topic in subtopology.state_changelog_topics]
            self.decided.update(dict.fromkeys(changelogs, tasks[subtopology_id]))
            yield
        missing = yield from self._missing()
        problem = None
        if missing:
            text = f"Internal topics are missing: {_summary([topic.name for topic in missing])}"
            problem = Status(StatusCode.MISSING_INTERNAL_TOPICS, text)
        return Configuration(tasks, self.decided, missing, problem)

    def _check_sources(self) -> None:
        names = {name for each in self._subtopologies for name in each.source_topics}
        missing = sorted(name for name in names if self.topics.id_of(name) is None)
        if missing:
            raise _Problem(
                StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing."
            )

    @property
    def _subtopologies(self) -> Iterable[Subtopology]:
        return self.topology.subtopologies.values()

    def _count(self, name: str) -> int | None:
        """Return the partition count of a topic that exists or was decided on."""
        topic_id = self.topics.id_of(name)
        if topic_id is None:
            return self.decided.get(name)
        return self.topics.partition_count(topic_id)

    def _require_count(self, name: str) -> int:
        count = self._count(name)
        if count is None:
            raise StreamsInvalidTopology(f"Number of partitions is not set for topic: {name}")
        return count

    def _align(self, group: frozenset[str]) -> None:
        """Give copartitioned topics equal partition counts; raises _Problem."""
        if not group:
            return
        internal = {name: self._require_count(name) for name in sorted(group & self.repartition)}
        others = {name: self._require_count(name) for name in sorted(group - internal.keys())}
        if others:
            count = _equal_count(others, others)
        elif self.fixed:
            count = _equal_count({name: self._require_count(name) for name in self.fixed}, internal)
        else:
            count = max(internal.values())
        for name, current in internal.items():
            if name in self.fixed and current != count:
                raise _Problem(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{current}] of repartition topic [{name}] doesn't match "
                    f"number of partitions [{count}] of the source topic.",
                )
            self.decided[name] = count

    def _task_count(self, subtopology: Subtopology) -> int:
        counts = [self._require_count(name) for name in source_names(subtopology)]
        if not counts:
            raise StreamsInvalidTopology(
                f"No source topics found for subtopology {subtopology.subtopology_id}"
            )
        return max(counts)

    def _missing(self) -> Generator[None, None, list[InternalTopic]]:
        """Return the internal topics that do not exist; raises _Problem if one is unsuitable."""
        internal = {
            topic.name: topic
            for each in self._subtopologies
            for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
        }
        missing = []
        for name, topic in sorted(internal.items()):
            yield
            expected = topic.partitions or self.decided[name]
            topic_id = self.topics.id_of(name)
            if topic_id is None:
                configs = tuple((each.key, each.value) for each in topic.topic_configs)
                factor = topic.replication_factor or -1
                missing.append(InternalTopic(name, expected, factor, configs))
                continue
            current = self.topics.partition_count(topic_id)
            if current != expected:
                raise _Problem(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {name} has different number of partitions: expected "
                    f"{expected}, found {current}",
                )
        return missing


def _copartition_groups(subtopology: Subtopology) -> Iterable[frozenset[str]]:
    for group in subtopology.copartition_groups:
        repartition = subtopology.repartition_source_topics
        yield frozenset(
            [
                *(subtopology.source_topics[index] for index in group.source_topics),
                *(repartition[index].name for index in group.repartition_source_topics),
            ]
        )


def _equal_count(counts: Mapping[str, int], shown: Mapping[str, int]) -> int:
    """Return the common count of all topics; raises _Problem, with the counts of ``shown``."""
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name}={count}" for name, count in sorted(shown.items()))
        raise _Problem(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{text}}}]",
        )
    return next(iter(counts.values()))


def _summary(names: Sequence[str]) -> str:
    """Return the first names, and the number of further names."""
    rest = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {rest} additional topics" if rest > 0 else shown
