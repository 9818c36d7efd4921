"""Waits complete exactly when what they wait for is there."""

from math import inf

from kwire.replica.purgatory import (
    SHARED_MAX,
    ByteWait,
    ByteWaits,
    FetchIsolation,
    SharedReads,
    WaitTimes,
)


def wait(
    subject: ByteWaits[str, str], who: str, keys: list[str], missing: int, upto: FetchIsolation
) -> ByteWait[str, str]:
    made: ByteWait[str, str] = ByteWait(who, upto, missing)
    subject.add(made, keys)
    return made


def test_bytes_add_up_over_partitions():
    subject: ByteWaits[str, str] = ByteWaits()
    wait(subject, "w", ["p", "q"], 100, FetchIsolation.HIGH_WATERMARK)
    assert subject.pop_complete("p", FetchIsolation.HIGH_WATERMARK, 60) == []
    assert subject.pop_complete("q", FetchIsolation.STABLE, 60) == []  # not what it may read
    assert subject.pop_complete("r", FetchIsolation.HIGH_WATERMARK, 60) == []
    assert subject.pop_complete("q", FetchIsolation.HIGH_WATERMARK, 40) == ["w"]
    assert "p" not in subject.watched
    assert len(subject) == 0


def test_a_change_of_role_completes_all():
    subject: ByteWaits[str, str] = ByteWaits()
    wait(subject, "a", ["p", "q"], 100, FetchIsolation.HIGH_WATERMARK)
    wait(subject, "b", ["p"], 1, FetchIsolation.LOG_END)
    wait(subject, "c", ["q"], 1, FetchIsolation.STABLE)
    assert subject.pop_all("p") == ["a", "b"]
    assert subject.pop_all("p") == []
    assert subject.pop_complete("q", FetchIsolation.STABLE, 1) == ["c"]


def test_a_wait_that_ended_otherwise():
    subject: ByteWaits[str, str] = ByteWaits()
    made = wait(subject, "a", ["p", "q"], 1, FetchIsolation.LOG_END)
    subject.discard(made)
    subject.discard(made)
    assert subject.pop_complete("p", FetchIsolation.LOG_END, 5) == []
    assert len(subject) == 0


def test_reads_kept_for_others_are_few() -> None:
    """Fetches that one append completes may all have asked for something else."""
    wake = SharedReads()
    for number in range(1000):
        wake.keep(number, f"read {number}")
    wake.keep(3, "newer")
    assert len(wake.reads) == SHARED_MAX
    assert wake.reads[3] == "newer"


def test_only_fetches_that_are_completed_together_share() -> None:
    waits = ByteWaits[str, str]()
    together = [ByteWait[str, str](name, FetchIsolation.HIGH_WATERMARK, 10) for name in "ab"]
    later = ByteWait[str, str]("c", FetchIsolation.HIGH_WATERMARK, 20)
    for wait in (*together, later):
        waits.add(wait, ["p"])
    assert waits.pop_complete("p", FetchIsolation.HIGH_WATERMARK, 10) == ["a", "b"]
    assert together[0].shared_reads is together[1].shared_reads is not None
    assert waits.pop_complete("p", FetchIsolation.HIGH_WATERMARK, 10) == ["c"]
    assert later.shared_reads is None


def test_times_of_waits_that_are_over_wake_nobody() -> None:
    times = WaitTimes[int]()
    for number in range(1000):
        times.add(10 + number, number)
        if number % 10:
            times.discard(number)
    assert len(times._heap) < 300
    assert times.deadline == 10
    assert times.pop_due(20) == [0, 10]
    assert times.deadline == 30
    for number in range(20, 1000, 10):
        times.discard(number)
    assert times.deadline == inf
    assert times.pop_due(inf) == []
