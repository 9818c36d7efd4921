"""A follower's truncation, checked on logs as lists of epochs (KIP-101, KIP-279)."""

import random

import pytest

from kwire.log.epochs import LeaderEpochs
from kwire.replica.fetcher.truncation import target


def epochs_of(log: list[int]) -> LeaderEpochs:
    """Return the epochs of a log that is given as the epoch of each record."""
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(log):
        epochs.assign(epoch, offset)
    return epochs


def diverging(leader: list[int], fetch_offset: int, last_epoch: int) -> tuple[int, int] | None:
    """Return the leader's answer to a fetch: its epoch and end offset, None if the logs agree."""
    epochs = epochs_of(leader)
    epochs.assign(99, len(leader))  # A leader begins its epoch before it answers.
    epoch, end = epochs.end_of(last_epoch, len(leader))
    if epoch < last_epoch or end < fetch_offset:
        return epoch, end
    return None


def common_prefix(first: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(first), len(other)) and first[length] == other[length]:
        length += 1
    return length


def converge(follower: list[int], leader: list[int]) -> list[int]:
    """Truncate a follower's log as the leader answers, until a fetch is in order."""
    log = list(follower)
    for _ in range(len(follower) + 1):
        if not log:
            return log
        answer = diverging(leader, len(log), log[-1])
        if answer is None:
            return log
        offset = target(epochs_of(log), len(log), *answer)
        assert offset < len(log), "each answer makes the log shorter"
        log = log[:offset]
    raise AssertionError("it never ends")


def test_follower_with_records_that_the_leader_lacks_truncates_them() -> None:
    """Invariant 25: KIP-101, scenario 2."""
    assert converge([0, 0, 1, 1], [0, 0, 2]) == [0, 0]


def test_follower_without_the_leaders_epoch_truncates_step_by_step() -> None:
    """Invariant 26: KIP-279, a fast double failover."""
    assert converge([0, 1, 1, 3, 3], [0, 2, 2, 4]) == [0]
    assert converge([0, 0, 2, 2], [0, 0, 0, 1, 1, 3]) == [0, 0]


def test_follower_that_is_only_behind_truncates_nothing() -> None:
    assert converge([0, 0, 1], [0, 0, 1, 1, 2]) == [0, 0, 1]


@pytest.mark.parametrize("seed", range(300))
def test_truncated_log_is_a_prefix_of_the_leaders_and_keeps_what_is_common(seed: int) -> None:
    """Histories as elections make them: an epoch's records have one leader, so one order."""
    draw = random.Random(seed)
    logs: list[list[int]] = [[], []]
    for epoch in range(8):
        leader = draw.randrange(2)
        other = 1 - leader
        if draw.random() < 0.6:
            logs[other] = converge(logs[other], logs[leader])
            start = len(logs[other])
            assert logs[other] == logs[leader][:start]
            logs[other] += logs[leader][start:]
        written = [epoch] * draw.randrange(4)
        logs[leader] += written
        if logs[other] == logs[leader][: len(logs[leader]) - len(written)]:
            logs[other] += written[: draw.randrange(len(written) + 1)]
    follower, leader_log = logs
    result = converge(follower, leader_log)
    assert result == leader_log[: len(result)]
    assert len(result) == common_prefix(follower, leader_log)
