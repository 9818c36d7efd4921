"""Which offset counts, whatever transactions, tombstones and loads do in between."""

from random import Random

import pytest

from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.coordinator.decision import NO_PRODUCER
from kwire.group.offsets import Offsets

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
        assert offsets.unstable("g", "t", 0) == bool(open_commits)
        assert offsets.count == (counts is not None)
        assert offsets.groups_of("t") == ([] if counts is None else ["g"])
