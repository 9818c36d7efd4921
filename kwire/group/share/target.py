"""The target assignment of a share group: the initialized partitions that each member gets."""

from collections.abc import Generator, Iterable, Mapping
from typing import TypeAlias

from kwire.coordinator.partitioning import java_hash
from kwire.group.consumer.model import Partitions
from kwire.group.consumer.target import Targets
from kwire.group.consumer.topics import Topics
from kwire.group.kind_tables import KindTables
from kwire.group.share.assignor import Sharer, assign_simple
from kwire.group.share.model import ShareGroup, ShareMember
from kwire.group.share.settings import ShareSettings
from kwire.hash_order import listing


def computing(
    group: ShareGroup, changes: Mapping[str, ShareMember], topics: Topics
) -> Generator[None, None, Targets]:
    """Compute the target of all members; ``changes`` are the current decision's.

    The group is read only before the first yield. Yields after each small piece of work.
    """
    members = {**group.members, **changes}
    targets = dict(group.target)
    initialized = {} if group.partitions is None else dict(group.partitions.initialized)
    yield
    ids: dict[frozenset[str], list[bytes]] = {}
    sharers: list[Sharer] = []
    for member_id, member in members.items():
        if member.topics not in ids:
            names = yield from listing(sorted(member.topics), java_hash)
            ids[member.topics] = ids_of(names, topics)
        current = targets.get(member_id, {})
        sharers.append(Sharer(member_id, ids[member.topics], current))
        yield
    assignable: dict[bytes, frozenset[int]] = {}
    for topic_id, state in initialized.items():
        count = topics.partition_count(topic_id)
        assignable[topic_id] = state.partitions & frozenset(range(count))
        yield
    return (yield from assign_simple(sharers, assignable, is_even=len(ids) == 1))


def ids_of(names: Iterable[str], topics: Topics) -> list[bytes]:
    """Return the ids of the topics that exist."""
    return [topic_id for name in names if (topic_id := topics.id_of(name)) is not None]


def target_size(group: ShareGroup) -> int:
    """Return how many members and partitions the target of a group has."""
    initialized = {} if group.partitions is None else group.partitions.initialized
    return len(group.members) + sum(len(state.partitions) for state in initialized.values())


ShareTables: TypeAlias = KindTables[ShareGroup, Partitions, ShareSettings]
"""The share groups of one partition of `__consumer_offsets`."""
