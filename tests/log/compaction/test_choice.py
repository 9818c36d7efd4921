"""The choice of the log that is compacted next, and of the part that a pass cleans."""

import attrs
import pytest

from kwire.log.compaction.choice import (
    NEVER_MS,
    LogFacts,
    SegmentFacts,
    assess,
)
from kwire.log.config import LogConfig

NOW = 1_700_000_000_000
CONFIG = LogConfig(cleanup_compact=True, cleanup_delete=False)


def facts(
    *sizes: int,
    clean_end: int | None = None,
    start: int = 0,
    stable: int | None = None,
    times: list[int] | None = None,
    **settings: object,
) -> LogFacts:
    """Return a log whose segments have ten offsets each; the last one is active."""
    segments = [
        SegmentFacts(10 * n, size, times[n] if times else NOW, times[n] if times else NOW)
        for n, size in enumerate(sizes)
    ]
    end_offset = 10 * len(sizes)
    return LogFacts(
        segments=segments,
        local_start=start,
        end_offset=end_offset,
        last_stable_offset=end_offset if stable is None else stable,
        clean_end=clean_end,
        config=attrs.evolve(CONFIG, **settings),  # type: ignore[arg-type]
    )


def test_log_without_a_checkpoint_is_dirty_from_its_start() -> None:
    assessment = assess(facts(100, 100, 100), NOW)
    assert (assessment.first_dirty, assessment.end_offset) == (0, 20)
    assert (assessment.clean_bytes, assessment.cleanable_bytes) == (0, 200)
    assert assessment.is_due


def test_dirty_part_begins_at_the_checkpoint() -> None:
    assessment = assess(facts(100, 100, 100, clean_end=10), NOW)
    assert (assessment.first_dirty, assessment.clean_bytes) == (10, 100)
    assert assessment.cleanable_ratio == 0.5
    assert not assessment.is_due  # The ratio must be exceeded.


def test_segment_that_the_checkpoint_lies_in_counts_twice_as_in_kafka() -> None:
    assessment = assess(facts(100, 100, 100, clean_end=15), NOW)
    assert (assessment.clean_bytes, assessment.cleanable_bytes) == (200, 100)


@pytest.mark.parametrize(
    ("clean_end", "start"), [(5, 12), (31, 12)], ids=["below the log start", "above the log end"]
)
def test_checkpoint_outside_the_log_is_void(clean_end: int, start: int) -> None:
    assert assess(facts(1, 1, 1, clean_end=clean_end, start=start), NOW).first_dirty == 12


def test_active_segment_is_never_cleaned() -> None:
    assessment = assess(facts(100), NOW)
    assert assessment.end_offset == 0
    assert not assessment.is_due


@pytest.mark.parametrize(("stable", "end"), [(30, 20), (20, 20), (19, 10), (9, 0)])
def test_records_above_the_last_stable_offset_are_not_cleaned(stable: int, end: int) -> None:
    """Invariant 65."""
    assessment = assess(facts(100, 100, 100, stable=stable), NOW)
    assert assessment.end_offset == end
    assert assessment.is_blocked == (stable < 20)


def test_segment_with_a_young_record_is_not_cleaned_before_the_lag_has_passed() -> None:
    log = facts(9, 9, 9, times=[NOW - 100, NOW - 99, NOW], min_compaction_lag_ms=100)
    assessment = assess(log, NOW)
    assert (assessment.end_offset, assessment.retry_ms) == (10, NOW + 1)
    assert assess(log, NOW + 1).end_offset == 20


def test_young_records_do_not_matter_without_a_minimum_lag() -> None:
    assert assess(facts(9, 9, times=[NOW + 5, NOW]), NOW).end_offset == 10


def test_log_is_due_once_its_oldest_dirty_record_exceeds_the_maximum_lag() -> None:
    log = facts(1000, 1, 1, clean_end=10, times=[1, NOW - 50, NOW], max_compaction_lag_ms=60)
    before = assess(log, NOW)
    assert (before.is_due, before.delay_ms, before.retry_ms) == (False, 0, NOW + 11)
    after = assess(log, before.retry_ms)
    assert (after.is_due, after.delay_ms, after.retry_ms) == (True, 1, NEVER_MS)


@pytest.mark.parametrize("time", [0, -1])
def test_records_without_a_time_never_exceed_the_maximum_lag(time: int) -> None:
    log = facts(1000, 1, 1, clean_end=10, times=[1, time, 1], max_compaction_lag_ms=1)
    assert not assess(log, NOW).is_due


def test_maximum_lag_does_not_overrule_the_last_stable_offset() -> None:
    log = facts(9, 9, stable=5, times=[1, 1], max_compaction_lag_ms=1)
    assessment = assess(log, NOW)
    assert assessment.delay_ms > 0
    assert not assessment.is_due


def test_empty_log_is_never_due() -> None:
    assert not assess(facts(0, 0, min_cleanable_dirty_ratio=0.0), NOW).is_due


def test_clean_log_is_not_due_with_a_ratio_of_zero() -> None:
    assert not assess(facts(9, 9, clean_end=10, min_cleanable_dirty_ratio=0.0), NOW).is_due


def test_checkpoint_inside_the_active_segment_leaves_nothing_to_clean() -> None:
    assessment = assess(facts(9, 9, clean_end=15), NOW)
    assert (assessment.cleanable_bytes, assessment.is_due) == (0, False)
