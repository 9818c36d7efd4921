"""The assignors of consumer groups: balance, stickiness, ranges, different subscriptions."""

import random
from collections.abc import Mapping

import pytest

from kwire.drive import run_steps
from kwire.group.consumer.assignors import Subscriber, assign_range, assign_uniform
from kwire.group.consumer.model import Partitions

Counts = dict[bytes, int]


def members(
    count: int, topics: frozenset[bytes], current: Mapping[str, Partitions]
) -> list[Subscriber]:
    names = [f"m{number}" for number in range(count)]
    return [Subscriber(name, None, topics, current.get(name, {})) for name in names]


def size(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def check_complete(result: dict[str, Partitions], counts: Counts) -> None:
    """Check that each partition has exactly one owner."""
    owned = [(t, n) for each in result.values() for t, numbers in each.items() for n in numbers]
    assert sorted(owned) == sorted((t, n) for t, count in counts.items() for n in range(count))


@pytest.mark.parametrize("seed", range(50))
def test_uniform_is_balanced_and_moves_no_more_than_it_must(seed: int) -> None:
    draw = random.Random(seed)
    counts: Counts = {bytes([n]) * 16: draw.randrange(1, 20) for n in range(draw.randrange(1, 4))}
    topics = frozenset(counts)
    current: dict[str, Partitions] = {}
    total = sum(counts.values())
    for _ in range(8):
        count = draw.randrange(1, 12)
        result = run_steps(assign_uniform(members(count, topics, current), counts))
        check_complete(result, counts)
        sizes = [size(each) for each in result.values()]
        assert max(sizes) - min(sizes) <= 1
        unmoved = sum(
            len(numbers & current.get(name, {}).get(topic, frozenset()))
            for name, each in result.items()
            for topic, numbers in each.items()
        )
        before = sorted((size(current.get(name, {})) for name in result), reverse=True)
        most = sorted(sizes, reverse=True)
        assert unmoved == sum(min(old, new) for old, new in zip(before, most, strict=True))
        current = result
    assert total == sum(map(size, current.values()))


def test_uniform_gives_away_first_what_nobody_had() -> None:
    """The order is Kafka's, and so are the owners."""
    topic = b"t" * 16
    current = {"m0": {topic: frozenset(range(6))}}
    result = run_steps(assign_uniform(members(3, frozenset({topic}), current), {topic: 7}))
    assert {member: set(each[topic]) for member, each in result.items()} == {
        "m0": {0, 1, 2},
        "m1": {6, 3},
        "m2": {4, 5},
    }


def test_uniform_drops_partitions_of_topics_without_subscribers() -> None:
    current = {"m0": {b"gone" * 4: frozenset({0, 1})}}
    result = run_steps(assign_uniform(members(1, frozenset({b"t" * 16}), current), {b"t" * 16: 2}))
    assert result == {"m0": {b"t" * 16: frozenset({0, 1})}}


@pytest.mark.parametrize("seed", range(50))
def test_uniform_balances_members_with_different_subscriptions(seed: int) -> None:
    """No partition could move to a subscriber that has two partitions less."""
    draw = random.Random(seed)
    counts: Counts = {bytes([n]) * 16: draw.randrange(1, 12) for n in range(1, 5)}
    names = sorted(counts)
    subscribers = [
        Subscriber(f"m{n}", None, frozenset(draw.sample(names, draw.randrange(1, 5))), {})
        for n in range(draw.randrange(2, 9))
    ]
    subscribed = frozenset[bytes]().union(*(m.topic_ids for m in subscribers))
    for _ in range(2):
        result = run_steps(assign_uniform(subscribers, counts))
        check_complete(result, {topic: counts[topic] for topic in subscribed})
        for member in subscribers:
            assert result[member.member_id].keys() <= member.topic_ids
            for topic in result[member.member_id]:
                for other in subscribers:
                    if topic in other.topic_ids:
                        gap = size(result[member.member_id]) - size(result[other.member_id])
                        assert gap <= 1
        subscribers = [m._replace(current=result[m.member_id]) for m in subscribers]


def test_range_gives_contiguous_ranges_and_the_same_numbers_of_each_topic() -> None:
    counts: Counts = {b"a" * 16: 5, b"b" * 16: 5}
    result = run_steps(assign_range(members(2, frozenset(counts), {}), counts))
    expected = {"m0": frozenset({0, 1, 2}), "m1": frozenset({3, 4})}
    assert result == {name: dict.fromkeys(counts, numbers) for name, numbers in expected.items()}


def test_range_sorts_static_members_first_by_instance_id() -> None:
    topic = b"t" * 16
    subscribers = [
        Subscriber("a", None, frozenset({topic}), {}),
        Subscriber("z", "i1", frozenset({topic}), {}),
        Subscriber("y", "i2", frozenset({topic}), {}),
    ]
    result = run_steps(assign_range(subscribers, {topic: 3}))
    assert {name: sorted(each[topic]) for name, each in result.items()} == {
        "z": [0],
        "y": [1],
        "a": [2],
    }


def test_range_counts_only_the_subscribers_of_a_topic() -> None:
    a, b = b"a" * 16, b"b" * 16
    subscribers = [
        Subscriber("m0", None, frozenset({a}), {}),
        Subscriber("m1", None, frozenset({a, b}), {}),
    ]
    result = run_steps(assign_range(subscribers, {a: 2, b: 2}))
    assert result == {
        "m0": {a: frozenset({0})},
        "m1": {a: frozenset({1}), b: frozenset({0, 1})},
    }
