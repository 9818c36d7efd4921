"""The server's assignors `uniform` and `range`, which decide on the partitions of each member.

Both are generators that yield after each small piece of work, so that a large group is assigned in
slices. They depend only on their arguments, and return the partitions of each member.

- `uniform` gives all members the same number of partitions, at most one more or less, and moves as
  few partitions as possible. If the members subscribe to different topics, it comes as close to
  that as their subscriptions allow; only then may it choose different members than Kafka.
- `range` gives each member a contiguous range of each topic, in the order of instance ids and then
  member ids.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

from kwire.coordinator.partitioning import java_hash
from kwire.group.consumer.model import Partitions
from kwire.hash_order import buckets_of_copy, hash_of_uuid, listing

Steps = Generator[None, None, dict[str, Partitions]]

_PARTITIONS_A_STEP: Final = 64
_BALANCING_ROUNDS: Final = 16
"""The largest number of rounds that move partitions between members of different subscriptions."""


class Subscriber(NamedTuple):
    """A member, as the assignors see it."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    """The existing topics that the member subscribes to."""
    current: Partitions
    """The member's partitions in the last target."""


def assign_range(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Steps:
    """Assign ranges; ``counts`` has the partition count of each subscribed topic."""
    ordered = sorted(members, key=_range_order)
    subscribers: dict[bytes, int] = {}
    for member in ordered:
        for topic_id in member.topic_ids:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
        yield
    positions: dict[bytes, int] = {}
    extras = {topic_id: counts[topic_id] % count for topic_id, count in subscribers.items()}
    result: dict[str, Partitions] = {}
    for member in ordered:
        partitions: dict[bytes, frozenset[int]] = {}
        for topic_id in sorted(member.topic_ids):
            start = positions.get(topic_id, 0)
            end = start + counts[topic_id] // subscribers[topic_id] + (extras[topic_id] > 0)
            extras[topic_id] -= extras[topic_id] > 0
            positions[topic_id] = end
            if start < end:
                partitions[topic_id] = frozenset(range(start, end))
            yield
        result[member.member_id] = partitions
    return result


def _range_order(member: Subscriber) -> tuple[bool, str]:
    """Order static members first, by instance id, so they keep their place on return."""
    return member.instance_id is None, member.instance_id or member.member_id


def assign_uniform(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Steps:
    """Assign evenly; ``counts`` has the partition count of each subscribed topic.

    The topics in ``counts`` are in the order of Kafka's set of their names.
    """
    if not members:
        return {}
    if all(member.topic_ids == members[0].topic_ids for member in members):
        return (yield from _assign_evenly(members, counts))
    return (yield from _assign_by_subscription(members, counts))


def _assign_evenly(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Steps:
    """Assign members that subscribe to the same topics.

    Each member keeps partitions up to its quota; members below their quota get the rest: first
    partitions that nobody had, then partitions that others gave up. A limited number of members may
    have one partition more than the minimum; members that already have an extra partition keep it
    first. Members, topics and partitions are visited in the order of Kafka's hash tables.
    """
    by_id = {member.member_id: member for member in members}
    visited = yield from listing(by_id, java_hash)
    subscribed = [topic_id for topic_id in counts if topic_id in members[0].topic_ids]
    topic_ids = yield from listing(subscribed, hash_of_uuid, buckets_of_copy(subscribed))
    minimum, extra_count = divmod(sum(counts[topic_id] for topic_id in topic_ids), len(members))
    # The partitions that no member visited so far has owned.
    available = {topic_id: set(range(counts[topic_id])) for topic_id in topic_ids}
    unassigned = yield from _never_assigned(members, topic_ids, counts)
    shares: dict[str, tuple[dict[bytes, set[int]], int]] = {}
    for position, member_id in enumerate(visited):
        room = minimum + (extra_count > 0)
        owned: dict[bytes, set[int]] = {}
        for topic_id in (yield from listing(by_id[member_id].current, hash_of_uuid)):
            if topic_id not in available:
                continue
            numbers = by_id[member_id].current[topic_id] & available[topic_id]
            available[topic_id] -= numbers
            if len(numbers) > room:
                order = yield from listing(sorted(numbers), int, buckets_of_copy(numbers))
                unassigned += [(topic_id, number) for number in order[room:]]
                numbers = frozenset(order[:room])
            if numbers:
                owned[topic_id] = set(numbers)
                room -= len(numbers)
            yield
        takes_extra = extra_count > 0 and (not room or len(members) - position <= extra_count)
        room -= extra_count > 0 and not takes_extra
        extra_count -= takes_extra
        shares[member_id] = owned, room
        yield
    start = 0
    result: dict[str, Partitions] = {}
    for member_id, (owned, room) in shares.items():
        former = list(owned)
        for topic_id, number in unassigned[start : start + room]:
            owned.setdefault(topic_id, set()).add(number)
        start += room
        # Kafka inserts new topics at the front of their bucket.
        added = [topic_id for topic_id in owned if topic_id not in former]
        if added and len(owned) > 1:
            ids = yield from listing([*reversed(added), *former], hash_of_uuid)
            owned = {topic_id: owned[topic_id] for topic_id in ids}
        result[member_id] = _frozen(owned)
        yield
    return result


def _never_assigned(
    members: Sequence[Subscriber], topic_ids: Sequence[bytes], counts: Mapping[bytes, int]
) -> Generator[None, None, list[tuple[bytes, int]]]:
    """Return the partitions that no member has now, by topic and number."""
    assigned: dict[bytes, set[int]] = {topic_id: set() for topic_id in topic_ids}
    for member in members:
        for topic_id in assigned.keys() & member.current.keys():
            assigned[topic_id] |= member.current[topic_id]
        yield
    free: list[tuple[bytes, int]] = []
    for topic_id in topic_ids:
        numbers = range(counts[topic_id])
        free += [(topic_id, number) for number in numbers if number not in assigned[topic_id]]
        yield
    return free


def _frozen(owned: Mapping[bytes, set[int]]) -> Partitions:
    return {topic_id: frozenset(numbers) for topic_id, numbers in owned.items()}


def _assign_by_subscription(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Steps:
    """Assign members that subscribe to different topics.

    Members keep their partitions. Each free partition goes to the subscriber with the fewest
    partitions, beginning with the topics that have the most partitions per subscriber. Then topics
    are balanced in rounds.
    """
    subscribers: dict[bytes, list[int]] = {}
    for index, member in enumerate(members):
        for topic_id in member.topic_ids:
            subscribers.setdefault(topic_id, []).append(index)
        yield
    order = sorted(
        subscribers,
        key=lambda topic_id: (
            -counts[topic_id] / len(subscribers[topic_id]),
            len(subscribers[topic_id]),
            topic_id,
        ),
    )
    owners, sizes = yield from _keep_partitions(members, {t: counts[t] for t in order})
    for topic_id in order:
        yield from _assign_free(owners[topic_id], subscribers[topic_id], sizes)
    for _ in range(_BALANCING_ROUNDS):
        moved = 0
        for topic_id in order:
            moved += yield from _balance(owners[topic_id], subscribers[topic_id], sizes)
        if not moved:
            break
    owned: list[dict[bytes, set[int]]] = [{} for _ in members]
    for topic_id, of_topic in owners.items():
        for number, index in enumerate(of_topic):
            owned[index].setdefault(topic_id, set()).add(number)
            if number % _PARTITIONS_A_STEP == 0:
                yield
    return {m.member_id: _frozen(each) for m, each in zip(members, owned, strict=True)}


def _keep_partitions(
    members: Sequence[Subscriber], counts: Mapping[bytes, int]
) -> Generator[None, None, tuple[dict[bytes, list[int]], list[int]]]:
    """Return the owner of each partition, -1 if it is free, and each member's partition count."""
    owners = {topic_id: [-1] * count for topic_id, count in counts.items()}
    sizes = [0] * len(members)
    for index, member in enumerate(members):
        for topic_id in member.topic_ids & member.current.keys():
            of_topic = owners[topic_id]
            for number in member.current[topic_id]:
                if number < len(of_topic) and of_topic[number] < 0:
                    of_topic[number] = index
                    sizes[index] += 1
            yield
    return owners, sizes


def _assign_free(
    owners: list[int], subscribers: Sequence[int], sizes: list[int]
) -> Generator[None, None, None]:
    """Give each free partition of a topic to the subscriber that has the fewest."""
    heap = [(sizes[index], index) for index in subscribers]
    heapify(heap)
    for number, owner in enumerate(owners):
        if owner < 0:
            _, index = heap[0]
            owners[number] = index
            sizes[index] += 1
            heapreplace(heap, (sizes[index], index))
        if number % _PARTITIONS_A_STEP == 0:
            yield


def _balance(
    owners: list[int], subscribers: Sequence[int], sizes: list[int]
) -> Generator[None, None, int]:
    """Move partitions of a topic from members with more to members with fewer; return how many.

    A partition moves only between members whose counts differ by at least two, so that a move never
    widens the gap.
    """
    heap = [(sizes[index], index) for index in subscribers]
    heapify(heap)
    yield
    numbers = sorted(range(len(owners)), key=lambda number: -sizes[owners[number]])
    moved = 0
    for position, number in enumerate(numbers):
        while heap[0][0] != sizes[heap[0][1]]:
            heapreplace(heap, (sizes[heap[0][1]], heap[0][1]))
        least, index = heap[0]
        if sizes[owners[number]] - least >= 2:
            sizes[owners[number]] -= 1
            sizes[index] += 1
            owners[number] = index
            moved += 1
        if position % _PARTITIONS_A_STEP == 0:
            yield
    return moved


ASSIGNORS: Final[Mapping[str, Callable[[Sequence[Subscriber], Mapping[bytes, int]], Steps]]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
