"""The committed offset of a partition after transactions, tombstones and loads in any order."""

import gc
from random import Random
from typing import ClassVar

import pytest

from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.coordinator.decision import Record
from kwire.group.offsets import Offsets, pack
from kwire.group.requests import read_offsets
from kwire.group.shard import GroupShard
from kwire.records.header import NO_PRODUCER

KEY = OffsetCommitKey(group="g", topic="t", partition=0)


def commit_value(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset, leader_epoch=-1, metadata="", commit_timestamp=0, expire_timestamp=-1
    )


def committed_offset(offsets: Offsets) -> int | None:
    committed = offsets.get("g", "t", 0)
    return None if committed is None else committed.offset


@pytest.mark.parametrize("seed", range(50))
def test_committed_offset_is_the_latest_written_commit(seed: int) -> None:
    """Invariants 11 and 62: markers come in any order; an aborted commit never counts.

    Of the commits that took effect the last written one is the committed offset, so an offset only
    ever changes to one that a client committed later.
    """
    random = Random(seed)
    offsets = Offsets()
    open_commits: dict[int, int] = {}
    expected: int | None = None
    for offset in range(40):
        producer = random.randrange(3)
        match random.choice(["plain", "pending", "pending", "commit", "abort", "tombstone"]):
            case "plain":
                offsets.apply(KEY, commit_value(offset), NO_PRODUCER)
                expected = offset
            case "pending":
                offsets.apply(KEY, commit_value(offset), producer)
                open_commits[producer] = offset
            case "commit":
                offsets.end_transaction(producer, committed=True)
                pending = open_commits.pop(producer, -1)
                if pending > (-1 if expected is None else expected):
                    expected = pending
            case "abort":
                offsets.end_transaction(producer, committed=False)
                open_commits.pop(producer, None)
            case "tombstone":
                offsets.apply(KEY, None, NO_PRODUCER)
                open_commits.clear()
                expected = None
        assert committed_offset(offsets) == expected
        assert offsets.is_unstable("g", "t", 0) == bool(open_commits)
        assert offsets.has_pending("g") == bool(open_commits)
        assert list(offsets.unstable_partitions("g")) == ([("t", 0)] if open_commits else [])
        assert offsets.count == (expected is not None)
        assert offsets.groups_of("t") == ([] if expected is None else ["g"])


@pytest.mark.parametrize("seed", range(50))
def test_batched_changes_have_the_effect_of_single_records(seed: int) -> None:
    """Invariant 72: a coordinator that replays them has the same offsets."""
    random = Random(seed)
    batched, single = Offsets(), Offsets()
    for number in range(30):
        producer = random.randrange(3)
        spots = {
            topic: random.sample(range(4), random.randint(1, 4))
            for topic in random.sample(["t", "u", "v"], random.randint(1, 3))
        }
        keys = [
            OffsetCommitKey(group="g", topic=topic, partition=partition)
            for topic, partitions in spots.items()
            for partition in partitions
        ]
        match random.choice(["commit", "commit", "remove", "pending", "pending", "end"]):
            case "commit":
                committed = pack(commit_value(number))
                batched.commit_all("g", {t: dict.fromkeys(p, committed) for t, p in spots.items()})
                for key in keys:
                    single.apply(key, commit_value(number), NO_PRODUCER)
            case "remove":
                batched.remove_all("g", spots)
                for key in keys:
                    single.apply(key, None, NO_PRODUCER)
            case "pending":
                for offsets in (batched, single):
                    offsets.apply(keys[0], commit_value(number), producer)
            case "end":
                for offsets in (batched, single):
                    offsets.end_transaction(producer, committed=number % 3 > 0)
        assert batched == single


class ComparedId(str):
    """A group id that counts how often it is compared."""

    __slots__ = ()
    comparisons: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        ComparedId.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_fetch_of_stable_offsets_does_not_search_other_groups() -> None:
    """The cost of a fetch does not depend on the number of open transactions of other groups."""
    shard = GroupShard(lambda: "id")
    for number in range(1000):
        key = OffsetCommitKey(group=f"other{number}", topic="t", partition=0)
        shard.apply(Record(key, commit_value(1)), 7)
    shard.apply(Record(KEY, commit_value(5)))
    shard.apply(Record(KEY, commit_value(6)), 7)
    partitions = [("t", [0, 1])]
    ComparedId.comparisons = 0
    read = read_offsets(shard, ComparedId("g"), partitions, require_stable=True)
    assert read.unstable == {("t", 0)}
    unstable = read_offsets(shard, "g", partitions, require_stable=False).unstable
    assert unstable == frozenset()
    assert read_offsets(shard, "g", None, require_stable=True).unstable == {("t", 0)}
    assert ComparedId.comparisons < 10


def test_a_garbage_collection_does_not_visit_committed_offsets() -> None:
    """A collection of a million offsets would stop the event loop for a fifth of a second."""
    offsets = Offsets()
    offsets.apply(KEY, commit_value(0), NO_PRODUCER)
    gc.collect()
    count = len(gc.get_objects())
    for partition in range(1, 1000):
        key = OffsetCommitKey(group="g", topic="t", partition=partition)
        offsets.apply(key, commit_value(partition), NO_PRODUCER)
    gc.collect()
    assert offsets.count == 1000
    assert len(gc.get_objects()) - count < 100
