"""The target assignment of a consumer group: the partitions that each member should get."""

from collections.abc import Generator, Mapping
from typing import TypeAlias

from kwire.coordinator.partitioning import java_hash
from kwire.group.consumer.assignors import ASSIGNORS, Subscriber
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember, Partitions
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.consumer.topics import Topics
from kwire.group.kind_tables import KindTables
from kwire.hash_order import listing

Changes = Mapping[str, ConsumerMember | None]
"""Members that the current decision adds or changes; None for members that it removes."""
Targets = dict[str, Partitions]
"""The partitions that each member should get, by member id."""


def computing(
    group: ConsumerGroup, changes: Changes, topics: Topics, assignor: str
) -> Generator[None, None, Targets]:
    """Compute the target of all members; yields after each small piece of work.

    The group is read only before the first yield.
    """
    members = {m: member for m, member in group.members.items() if m not in changes}
    members.update((m, member) for m, member in changes.items() if member is not None)
    targets, instances = dict(group.target), dict(group.instances)
    subscriptions = {m: group.subscriptions(member) for m, member in members.items()}
    yield
    ids: dict[frozenset[str], frozenset[bytes]] = {}
    counts: dict[bytes, int] = {}
    subscribers: list[Subscriber] = []
    for member_id, member in members.items():
        names = subscriptions[member_id]
        if names not in ids:
            ids[names] = topic_ids_of(names, topics)
            for name in (yield from listing(sorted(names), java_hash)):
                if (topic_id := topics.id_of(name)) is not None:
                    counts[topic_id] = topics.partition_count(topic_id)
        former_id = instances.get(member.instance_id or "", member_id)
        current = targets.get(former_id, {})
        subscribers.append(Subscriber(member_id, member.instance_id, ids[names], current))
        yield
    return (yield from ASSIGNORS[assignor](subscribers, counts))


def topic_ids_of(names: frozenset[str], topics: Topics) -> frozenset[bytes]:
    """Return the ids of the topics that exist."""
    return frozenset(i for name in names if (i := topics.id_of(name)) is not None)


def target_size(group: ConsumerGroup, names: frozenset[str] | set[str], topics: Topics) -> int:
    """Return how many members and partitions the target of a group has."""
    ids = topic_ids_of(frozenset(names), topics)
    return len(group.members) + sum(topics.partition_count(topic_id) for topic_id in ids)


ConsumerTables: TypeAlias = KindTables[ConsumerGroup, Partitions, ConsumerSettings]
"""The consumer groups of one partition of `__consumer_offsets`."""
