"""The topology of a streams group: its subtopologies, and the topics that they need.

The first member that joins sends the topology, and the group stores it as a record.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from kwire.codec.messages.streams_group_describe import KeyValue as DescribedConfig
from kwire.codec.messages.streams_group_describe import StreamsGroupDescribeResponse
from kwire.codec.messages.streams_group_describe import TopicInfo as DescribedTopic
from kwire.codec.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kwire.codec.messages.streams_group_heartbeat import TopicInfo as RequestTopic
from kwire.codec.messages.streams_group_records import (
    StreamsGroupTopologyValue,
    TopicConfig,
    TopicInfo,
)
from kwire.errors import StreamsInvalidTopology

Subtopology = StreamsGroupTopologyValue.Subtopology
Described = StreamsGroupDescribeResponse.DescribedGroup.Topology

NO_COUNTS: Final[Mapping[str, int]] = {}


@attrs.frozen(eq=False, repr=False)
class Topology:
    """A topology record, with the lookups derived from it."""

    value: StreamsGroupTopologyValue
    subtopologies: Mapping[str, Subtopology]
    """By their ids, in the order of the ids."""
    sources: Mapping[str, str]
    """The id of the subtopology that reads a topic, by the topic's name."""
    required: frozenset[str]
    """The names of all topics that the topology reads or keeps its state in."""

    @classmethod
    def of(cls, value: StreamsGroupTopologyValue) -> "Topology":
        by_id = {each.subtopology_id: each for each in value.subtopologies}
        sources = {
            name: each.subtopology_id for each in by_id.values() for name in source_names(each)
        }
        changelogs = (t.name for each in by_id.values() for t in each.state_changelog_topics)
        return cls(
            value, dict(sorted(by_id.items())), sources, frozenset(sources).union(changelogs)
        )

    @property
    def epoch(self) -> int:
        return self.value.epoch

    def is_equal_to(self, other: "Topology") -> bool:
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies


def source_names(subtopology: Subtopology) -> list[str]:
    """Return the names of the topics that a subtopology reads."""
    repartition = [topic.name for topic in subtopology.repartition_source_topics]
    return [*subtopology.source_topics, *repartition]


def topology_from(requested: StreamsGroupHeartbeatRequest.Topology) -> Topology:
    """Return the topology that a member sends; raises StreamsInvalidTopology."""
    if requested.epoch < 0:
        # Apache Kafka's coordinator could not load the record of such a topology.
        raise StreamsInvalidTopology("Topology epoch must be non-negative.")
    subtopologies = []
    for each in requested.subtopologies:
        groups = [
            Subtopology.CopartitionGroup(
                source_topics=group.source_topics,
                source_topic_regex=group.source_topic_regex,
                repartition_source_topics=group.repartition_source_topics,
            )
            for group in each.copartition_groups
        ]
        subtopology = Subtopology(
            subtopology_id=each.subtopology_id,
            source_topics=each.source_topics,
            source_topic_regex=each.source_topic_regex,
            state_changelog_topics=[_internal_topic(t) for t in each.state_changelog_topics],
            repartition_sink_topics=each.repartition_sink_topics,
            repartition_source_topics=[_internal_topic(t) for t in each.repartition_source_topics],
            copartition_groups=groups,
        )
        _check_copartition_groups(subtopology)
        subtopologies.append(subtopology)
    if len({each.subtopology_id for each in subtopologies}) < len(subtopologies):
        raise StreamsInvalidTopology("Two subtopologies have the same id.")
    return Topology.of(
        StreamsGroupTopologyValue(epoch=requested.epoch, subtopologies=subtopologies)
    )


def _internal_topic(topic: RequestTopic) -> TopicInfo:
    if topic.partitions < 0:
        raise StreamsInvalidTopology(f"Topic {topic.name} has a negative number of partitions.")
    return TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[TopicConfig(key=each.key, value=each.value) for each in topic.topic_configs],
    )


def _check_copartition_groups(subtopology: Subtopology) -> None:
    """Reject indexes of topics that the subtopology does not have."""
    for group in subtopology.copartition_groups:
        for indexes, topics in (
            (group.source_topics, len(subtopology.source_topics)),
            (group.repartition_source_topics, len(subtopology.repartition_source_topics)),
        ):
            if not all(0 <= index < topics for index in indexes):
                raise StreamsInvalidTopology(
                    f"A copartition group of subtopology {subtopology.subtopology_id} names a "
                    "topic that the subtopology does not have."
                )


def describe_topology(topology: Topology, counts: Mapping[str, int]) -> Described:
    """Describe a topology; ``counts`` has the partition counts of internal topics, if decided."""

    def describe(topics: list[TopicInfo]) -> list[DescribedTopic]:
        return [
            DescribedTopic(
                name=topic.name,
                partitions=counts.get(topic.name, topic.partitions),
                replication_factor=topic.replication_factor,
                topic_configs=[
                    DescribedConfig(key=each.key, value=each.value) for each in topic.topic_configs
                ],
            )
            for topic in sorted(topics, key=lambda topic: topic.name)
        ]

    return Described(
        epoch=topology.epoch,
        subtopologies=[
            Described.Subtopology(
                subtopology_id=subtopology_id,
                source_topics=sorted(each.source_topics),
                repartition_sink_topics=sorted(each.repartition_sink_topics),
                state_changelog_topics=describe(each.state_changelog_topics),
                repartition_source_topics=describe(each.repartition_source_topics),
            )
            for subtopology_id, each in topology.subtopologies.items()
        ],
    )
