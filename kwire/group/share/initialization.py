"""The progress of a group's share partitions from initialization of their state to its deletion.

The share coordinator stores the state of share partitions in `__share_group_state`. The group
coordinator asks for the state's initialization before it assigns the partition to a member, and for
its deletion. It records both the request and its completion, so that no state is forgotten if a
coordinator fails in between. The functions are pure: each returns the group's share partitions
after a step.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from kwire.group.consumer.topics import Topics
from kwire.group.share.model import ShareGroup, SharePartitions, TopicState
from kwire.group.share.records import UNKNOWN_NAME

TopicStates = Mapping[bytes, TopicState]
"""Partitions with the topic's name, by topic id."""
Numbers = Mapping[bytes, Iterable[int]]
"""Partitions by topic id."""

NO_PARTITIONS: Final = SharePartitions()
NO_TOPIC: Final = TopicState("", frozenset())


def find_uninitialized(
    group: ShareGroup, names: Iterable[str], topics: Topics, now_ms: int, retry_ms: int
) -> dict[bytes, TopicState]:
    """Return the partitions of subscribed topics that have to be initialized now.

    An initialization that began less than ``retry_ms`` ago is not repeated.
    """
    current = group.partitions or NO_PARTITIONS
    since_ms = group.initializing_ms
    waits = since_ms is not None and now_ms - since_ms < retry_ms
    missing: dict[bytes, TopicState] = {}
    for name in sorted(names):
        topic_id = topics.id_of(name)
        if topic_id is None:
            continue
        count = topics.partition_count(topic_id)
        done = [current.initialized.get(topic_id, NO_TOPIC).partitions]
        if waits:
            done.append(current.initializing.get(topic_id, NO_TOPIC).partitions)
        if len(frozenset().union(*done)) < count:
            missing[topic_id] = TopicState(name, frozenset(range(count)).difference(*done))
    return missing


def begin(current: SharePartitions | None, states: TopicStates) -> SharePartitions:
    """Record that partitions are being initialized; their topics are no longer being deleted."""
    current = current or NO_PARTITIONS
    initializing = _unite(current.initializing, states)
    return current._replace(
        initializing=initializing, deleting=current.deleting - initializing.keys()
    )


def finish(current: SharePartitions | None, numbers: Numbers, topics: Topics) -> SharePartitions:
    """Record that partitions are initialized."""
    current = current or NO_PARTITIONS
    states = {
        topic_id: TopicState(topics.name_of(topic_id) or UNKNOWN_NAME, frozenset(each))
        for topic_id, each in numbers.items()
    }
    return current._replace(
        initializing=_without(current.initializing, numbers),
        initialized=_unite(current.initialized, states),
    )


def give_up(current: SharePartitions, numbers: Numbers) -> SharePartitions:
    """Record that the initialization of partitions has failed."""
    return current._replace(initializing=_without(current.initializing, numbers))


def forget(current: SharePartitions, topic_ids: Iterable[bytes]) -> SharePartitions:
    """Remove deleted topics."""
    deleted_ids = frozenset(topic_ids)
    return SharePartitions(
        initializing={
            t: state for t, state in current.initializing.items() if t not in deleted_ids
        },
        initialized={t: state for t, state in current.initialized.items() if t not in deleted_ids},
        deleting=current.deleting - deleted_ids,
    )


def deletable(current: SharePartitions, topics: Topics) -> dict[bytes, frozenset[int]]:
    """Return all partitions that may have state, including those of earlier deletions."""
    states = _unite(current.initialized, current.initializing)
    numbers = {topic_id: state.partitions for topic_id, state in states.items()}
    for topic_id in sorted(current.deleting):
        if topics.name_of(topic_id) is not None:
            every = frozenset(range(topics.partition_count(topic_id)))
            numbers[topic_id] = numbers.get(topic_id, frozenset()) | every
    return numbers


def _unite(first: TopicStates, second: TopicStates) -> dict[bytes, TopicState]:
    united = dict(first)
    for topic_id, state in second.items():
        if topic_id in united:
            state = state._replace(partitions=united[topic_id].partitions | state.partitions)
        united[topic_id] = state
    return united


def _without(states: TopicStates, numbers: Numbers) -> dict[bytes, TopicState]:
    rest: dict[bytes, TopicState] = {}
    for topic_id, state in states.items():
        partitions = state.partitions.difference(numbers.get(topic_id, ()))
        if partitions:
            rest[topic_id] = state._replace(partitions=partitions)
    return rest
