"""The partition counts of repartition topics, compared with rounds over all their writers."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kwire.codec.messages.streams_group_records import TopicInfo
from kwire.errors import StreamsInvalidTopology
from kwire.group.streams.repartition import decide_counts
from kwire.group.streams.topology import Subtopology

SOURCES: Mapping[str, int] = {"a": 3, "b": 5}
names = st.sampled_from([f"r{number}" for number in range(6)])


def subtopology(
    sources: Sequence[str], reads: Mapping[str, int], writes: Sequence[str]
) -> Subtopology:
    return Subtopology(
        subtopology_id="",
        source_topics=list(sources),
        repartition_source_topics=[
            TopicInfo(name=name, partitions=count, replication_factor=0)
            for name, count in reads.items()
        ],
        repartition_sink_topics=list(writes),
    )


def counts_in_rounds(subtopologies: Sequence[Subtopology]) -> dict[str, int] | None:
    """Visit all writers in each round, as Kafka does; return None if counts stay unknown."""
    read = [topic for each in subtopologies for topic in each.repartition_source_topics]
    counts = {topic.name: topic.partitions for topic in read if topic.partitions}
    sinks = [(name, each) for each in subtopologies for name in each.repartition_sink_topics]
    while waiting := [(name, each) for name, each in sinks if name not in counts]:
        count_before = len(counts)
        for name, each in waiting:
            sizes = [counts.get(topic.name) for topic in each.repartition_source_topics]
            sizes += [SOURCES.get(source) for source in each.source_topics]
            sizes_read = [size for size in sizes if size is not None]
            if sizes_read:
                counts.setdefault(name, max(sizes_read))
        if len(counts) == count_before:
            return None
    return counts if all(topic.name in counts for topic in read) else None


@given(
    st.lists(
        st.builds(
            subtopology,
            st.lists(st.sampled_from(sorted(SOURCES)), max_size=1),
            st.dictionaries(names, st.sampled_from([0, 0, 0, 2, 7]), max_size=3),
            st.lists(names, max_size=2),
        ),
        max_size=6,
    )
)
@example(
    [
        subtopology(["b"], {}, ["r2"]),
        subtopology([], {"r2": 0}, ["r3", "r2"]),
        subtopology(["a"], {}, ["r3"]),
    ]
)
def test_counts_are_those_of_rounds_over_all_writers(topology: list[Subtopology]) -> None:
    """Invariant 74."""
    expected = counts_in_rounds(topology)
    if expected is None:
        with pytest.raises(StreamsInvalidTopology):
            decide_counts(topology, SOURCES.get)
    else:
        assert decide_counts(topology, SOURCES.get) == expected


def test_long_chain_against_the_order_of_its_subtopologies_is_decided() -> None:
    length = 2_000
    chain = [subtopology([], {f"r{number + 1}": 0}, [f"r{number}"]) for number in range(1, length)]
    topology = [subtopology([], {"r1": 0}, []), *chain, subtopology(["a"], {}, [f"r{length}"])]
    assert set(decide_counts(topology, SOURCES.get).values()) == {3}
