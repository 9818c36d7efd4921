"""The server's assignor `simple`, which decides on the partitions of each member of a share group.

Several members may have the same partition. Each partition gets the same number of members: one, or
as many as are needed to give every member a partition. The members get equal shares of these
places, and keep their current partitions where possible. If the members subscribe to different
topics, each topic is shared among its own subscribers.

The results are those of Apache Kafka's assignor, which visits members and partitions in the order
of its hash tables (:mod:`kwire.hash_order`). It is a generator that yields after each
small piece of work, so that a large group is assigned in slices.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

import attrs

from kwire.coordinator.partitioning import java_hash
from kwire.group.consumer.model import Partitions
from kwire.hash_order import (
    buckets_for,
    buckets_of,
    hash_of_partition,
    hash_of_uuid,
    listing,
)

Steps = Generator[None, None, dict[str, Partitions]]
Place = tuple[bytes, int]
"""A partition of a topic, by the topic's id."""

_PARTITIONS_A_STEP: Final = 64


class Sharer(NamedTuple):
    """A member, as the assignor sees it."""

    member_id: str
    topic_ids: Sequence[bytes]
    """The existing topics that the member subscribes to, in the iteration order of Kafka's set."""
    current: Partitions
    """The member's partitions in the last target."""


def assign_simple(
    members: Sequence[Sharer], assignable: Mapping[bytes, frozenset[int]], *, is_even: bool
) -> Steps:
    """Assign the ``assignable`` partitions, which are given by topic id.

    ``is_even`` is true if all members subscribe to the same names.
    """
    if not members:
        return {}
    by_id = {member.member_id: member for member in members}
    order = yield from listing(by_id, java_hash)
    sharers = [by_id[member_id] for member_id in order]
    topic_ids = frozenset[bytes]().union(*(member.topic_ids for member in sharers))
    if not topic_ids:
        return {member_id: {} for member_id in order}
    owned: list[dict[bytes, set[int]]] = []
    for member in sharers:
        relevant = topic_ids if is_even else member.current.keys()
        owned.append({t: set(numbers) for t, numbers in member.current.items() if t in relevant})
        yield
    if is_even:
        yield from _share(
            owned, range(len(sharers)), sharers[0].topic_ids, assignable, hash_of_partition
        )
    else:
        for topic_id in sorted(topic_ids):
            subscribers = [i for i, member in enumerate(sharers) if topic_id in member.topic_ids]
            yield from _share(owned, subscribers, [topic_id], assignable, _number_of)
    return {
        member_id: {topic_id: frozenset(numbers) for topic_id, numbers in each.items()}
        for member_id, each in zip(order, owned, strict=True)
    }


def _share(
    owned: list[dict[bytes, set[int]]],
    subscribers: Sequence[int],
    topic_ids: Sequence[bytes],
    assignable: Mapping[bytes, frozenset[int]],
    hash_of: Callable[[Place], int],
) -> Generator[None, None, None]:
    """Share the partitions of topics among members, which are indexes into ``owned``."""
    places = [(t, n) for t in topic_ids for n in sorted(assignable.get(t, frozenset()))]
    sharing = -(-len(subscribers) // len(places)) if places else 0
    sharers = _Sharers(owned, sharing, _quotas(subscribers, sharing * len(places)), hash_of)
    yield from sharers.note_owners(topic_ids)
    yield from sharers.revoke_above_quota()
    yield from sharers.revoke_above_sharing()
    for place in places:
        sharers.owners.setdefault(place, set())
    yield from sharers.assign_rest(subscribers, len(places))


def _quotas(subscribers: Sequence[int], count: int) -> dict[int, int]:
    """Divide ``count`` places among members; remainders are distributed as in Kafka."""
    precise = count / len(subscribers)
    return {
        index: ceil(precise * (position + 1)) - ceil(precise * position)
        for position, index in enumerate(subscribers)
    }


@attrs.define(eq=False, repr=False)
class _Sharers:
    """The members that share partitions, during an assignment."""

    owned: list[dict[bytes, set[int]]]
    """The partitions of each member."""
    sharing: int
    """The number of members that each partition should get."""
    quotas: dict[int, int]
    """The number of partitions that each subscriber should get."""
    hash_of: Callable[[Place], int]
    """Returns the hash by which Kafka's tables order these partitions."""
    owners: dict[Place, set[int]] = attrs.field(factory=dict)
    """The members that keep a partition."""
    peaks: dict[Place, int] = attrs.field(factory=dict)
    """The number of members that had a partition in the beginning."""
    places: dict[int, dict[Place, None]] = attrs.field(factory=dict)
    """The partitions of each member among those that are shared."""

    def note_owners(self, topic_ids: Sequence[bytes]) -> Generator[None, None, None]:
        for index, topics in enumerate(self.owned):
            order = yield from listing(topics, hash_of_uuid)
            for topic_id in order:
                for number in sorted(topics[topic_id] if topic_id in topic_ids else ()):
                    self.owners.setdefault((topic_id, number), set()).add(index)
                    self.places.setdefault(index, {})[topic_id, number] = None
                    if number % _PARTITIONS_A_STEP == 0:
                        yield
            yield
        self.peaks = {place: len(indexes) for place, indexes in self.owners.items()}

    def revoke_above_quota(self) -> Generator[None, None, None]:
        """Take partitions away from members that have more than their quota."""
        for index, places in self.places.items():
            surplus = len(places) - self.quotas.get(index, 0)
            if surplus > 0:
                order = yield from listing(places, self.hash_of)
                for place in order[:surplus]:
                    self._revoke(index, place)

    def revoke_above_sharing(self) -> Generator[None, None, None]:
        """Take partitions that too many members have away from some of these members."""
        for place, indexes in self.owners.items():
            surplus = len(indexes) - self.sharing
            if surplus > 0:
                order = yield from listing(sorted(indexes), int, buckets_of(self.peaks[place]))
                for index in order[:surplus]:
                    self._revoke(index, place)
            yield

    def _revoke(self, index: int, place: Place) -> None:
        topic_id, number = place
        self.owned[index][topic_id].remove(number)
        self.owners[place].remove(index)
        del self.places[index][place]

    def assign_rest(
        self, subscribers: Sequence[int], place_count: int
    ) -> Generator[None, None, None]:
        """Give partitions with too few members to members below their quota, in turn.

        As in Kafka, a member may get the same partition repeatedly; each time, it uses up one of
        the partition's places.
        """
        waiting = [i for i in subscribers if len(self.places.get(i, ())) < self.quotas[i]]
        order = yield from listing(
            self.owners, self.hash_of, buckets_for(place_count), is_computed=True
        )
        turn, has_progress = 0, False
        for place in order:
            topic_id, number = place
            missing = self.sharing - len(self.owners[place])
            while missing > 0 and waiting:
                if turn >= len(waiting):
                    if not has_progress:
                        break
                    turn, has_progress = 0, False
                index = waiting[turn]
                turn += 1
                yield
                if index in self.owners[place]:
                    continue
                self.owned[index].setdefault(topic_id, set()).add(number)
                places = self.places.setdefault(index, {})
                places[place] = None
                missing, has_progress = missing - 1, True
                if len(places) >= self.quotas[index]:
                    turn -= 1
                    del waiting[turn]
            if not waiting:
                return


def _number_of(place: Place) -> int:
    return place[1]
