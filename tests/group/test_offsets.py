"""The committed offset of a partition after transactions, tombstones and loads in any order."""

from random import Random
from typing import ClassVar

import pytest

from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.coordinator.decision import Record
from kwire.group.offsets import Committed, Offsets
from kwire.group.requests import read_offsets
from kwire.group.shard import GroupShard
from kwire.records.header import NO_PRODUCER

KEY = OffsetCommitKey(group="g", topic="t", partition=0)


def commit(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset, leader_epoch=-1, metadata="", commit_timestamp=0, expire_timestamp=-1
    )


def offset_in(offsets: Offsets) -> int | None:
    committed = offsets.get("g", "t", 0)
    return None if committed is None else committed.offset


@pytest.mark.parametrize("seed", range(50))
def test_the_commit_that_was_written_last_counts(seed: int) -> None:
    """Invariants 11 and 62: markers come in any order; an aborted commit never counts.

    What counts is the last written of those that are committed, so an offset only ever changes
    to one that a client committed later.
    """
    random = Random(seed)
    offsets = Offsets()
    open_commits: dict[int, int] = {}
    counts: int | None = None
    for place in range(40):
        producer = random.randrange(3)
        match random.choice(["plain", "pending", "pending", "commit", "abort", "tombstone"]):
            case "plain":
                offsets.apply(KEY, commit(place), NO_PRODUCER)
                counts = place
            case "pending":
                offsets.apply(KEY, commit(place), producer)
                open_commits[producer] = place
            case "commit":
                offsets.end_transaction(producer, committed=True)
                written = open_commits.pop(producer, -1)
                if written > (-1 if counts is None else counts):
                    counts = written
            case "abort":
                offsets.end_transaction(producer, committed=False)
                open_commits.pop(producer, None)
            case "tombstone":
                offsets.apply(KEY, None, NO_PRODUCER)
                open_commits.clear()
                counts = None
        assert offset_in(offsets) == counts
        assert offsets.is_unstable("g", "t", 0) == bool(open_commits)
        assert offsets.has_open("g") == bool(open_commits)
        assert list(offsets.open_spots("g")) == ([("t", 0)] if open_commits else [])
        assert offsets.count == (counts is not None)
        assert offsets.groups_of("t") == ([] if counts is None else ["g"])


@pytest.mark.parametrize("seed", range(50))
def test_records_taken_in_together_count_as_one_by_one(seed: int) -> None:
    """Invariant 72: a coordinator that replays them has the same offsets."""
    random = Random(seed)
    together, apart = Offsets(), Offsets()
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
                committed = Committed.from_record(commit(number))
                together.commit_all("g", {t: dict.fromkeys(p, committed) for t, p in spots.items()})
                for key in keys:
                    apart.apply(key, commit(number), NO_PRODUCER)
            case "remove":
                together.remove_all("g", spots)
                for key in keys:
                    apart.apply(key, None, NO_PRODUCER)
            case "pending":
                for offsets in (together, apart):
                    offsets.apply(keys[0], commit(number), producer)
            case "end":
                for offsets in (together, apart):
                    offsets.end_transaction(producer, committed=number % 3 > 0)
        assert together == apart


class CountedId(str):
    """A group id that counts how often it is compared."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        CountedId.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_stable_offsets_are_read_without_a_look_at_other_groups() -> None:
    """A consumer's every look at its offsets costs the same, whatever transactions are open."""
    shard = GroupShard(lambda: "id")
    for number in range(1000):
        key = OffsetCommitKey(group=f"other{number}", topic="t", partition=0)
        shard.apply(Record(key, commit(1)), 7)
    shard.apply(Record(KEY, commit(5)))
    shard.apply(Record(KEY, commit(6)), 7)
    asked = [("t", [0, 1])]
    CountedId.compared = 0
    read = read_offsets(shard, CountedId("g"), asked, require_stable=True)
    assert read.unstable == {("t", 0)}
    assert read_offsets(shard, "g", asked, require_stable=False).unstable == frozenset()
    assert read_offsets(shard, "g", None, require_stable=True).unstable == {("t", 0)}
    assert CountedId.compared < 10
