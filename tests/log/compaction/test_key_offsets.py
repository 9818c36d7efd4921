"""The keys that a pass knows: dirty ones, committed ones, as many as fit: invariant 87."""

import pytest

from kwire.log.compaction.job import CleaningFailed
from tests.support.log.compaction import MadeLog, transaction


def test_newest_record_of_a_key_stays_and_older_ones_go() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    log.put((b"c", b"1"), (b"b", b"2"))
    log.roll()
    done = log.clean()
    assert log.pairs() == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert done.summary.clean_end == 5
    assert (done.summary.records_read, done.summary.records_kept) == (5, 3)


def test_clean_part_loses_what_the_dirty_part_replaces_only() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"a", b"2"), (b"b", b"1"))
    log.roll()
    log.put((b"b", b"2"))
    log.roll()
    log.clean(first_dirty=3)
    assert log.pairs() == [(0, b"a", b"1"), (1, b"a", b"2"), (3, b"b", b"2")]


def test_first_dirty_offset_inside_a_batch_maps_the_rest_of_the_batch() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", b"2"))
    log.roll()
    log.put((b"c", b"1"))
    log.roll()
    log.clean(first_dirty=3)
    assert log.pairs() == [
        (0, b"a", b"1"),
        (2, b"a", b"2"),
        (3, b"b", b"2"),
        (4, b"c", b"1"),
    ]


def test_records_at_and_above_the_end_offset_replace_nothing() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.roll()
    log.put((b"a", b"2"))
    log.roll()
    log.clean(end_offset=1)
    assert log.pairs() == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_record_without_a_key_is_dropped_and_counted() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (None, b"2"), (None, None))
    log.put((b"b", b"1"))
    log.roll()
    done = log.clean()
    assert log.pairs() == [(0, b"a", b"1"), (3, b"b", b"1")]
    assert done.summary.keyless_dropped == 2


def test_empty_key_is_a_key() -> None:
    log = MadeLog()
    log.put((b"", b"1"), (b"a", b"1"))
    log.put((b"", b"2"))
    log.roll()
    log.clean()
    assert log.pairs() == [(1, b"a", b"1"), (2, b"", b"2")]


def test_aborted_record_replaces_no_committed_one() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.put((b"a", b"aborted"), **transaction(7))
    log.mark(7, commit=False)
    log.put((b"b", b"1"), **transaction(8))
    log.mark(8, commit=True)
    log.roll()
    log.clean()
    assert log.pairs() == [(0, b"a", b"1"), (3, b"b", b"1")]


def test_committed_record_replaces_an_older_one() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.put((b"a", b"2"), **transaction(7))
    log.mark(7, commit=True)
    log.roll()
    log.clean()
    assert log.pairs() == [(1, b"a", b"2")]


def test_marker_replaces_no_record_that_has_the_markers_key() -> None:
    log = MadeLog()
    log.put((b"\0\0\0\1", b"a record"))
    log.put((b"b", b"1"), **transaction(7))
    log.mark(7, commit=True)
    log.roll()
    log.clean()
    assert (0, b"\0\0\0\1", b"a record") in log.pairs()


def test_aborted_data_is_known_by_a_marker_in_a_segment_that_is_not_cleaned() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.put((b"a", b"aborted"), **transaction(7))
    log.roll()
    log.mark(7, commit=False)
    log.clean()
    assert log.pairs() == [(0, b"a", b"1")]


def test_transaction_that_ended_before_the_dirty_part_aborts_nothing_in_it() -> None:
    """The next transaction of the same producer is committed."""
    log = MadeLog()
    log.put((b"x", b"aborted"), **transaction(7))
    log.mark(7, commit=False)
    log.put((b"a", b"1"))
    log.put((b"a", b"2"), **transaction(7, 1))
    log.mark(7, commit=True)
    log.roll()
    log.clean(first_dirty=2)
    assert log.pairs() == [(3, b"a", b"2")]


# A map that gets full ------------------------------------------------------------------------
FOUR_KEYS = {"memory_bytes": 5 * 24, "load_factor": 0.9}


def test_full_map_ends_the_pass_at_the_last_key_that_fits() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", b"1"))
    log.put((b"c", b"1"), (b"a", b"2"), (b"d", b"1"), (b"e", b"1"), (b"b", b"2"))
    log.roll()
    done = log.clean(**FOUR_KEYS)
    assert done.summary.clean_end == 5
    assert done.summary.map_utilization == pytest.approx(0.8)
    # Nothing is known about b from offset 5 on, so its old record stays.
    assert log.pairs() == [
        (1, b"b", b"1"),
        (2, b"c", b"1"),
        (3, b"a", b"2"),
        (4, b"d", b"1"),
        (5, b"e", b"1"),
        (6, b"b", b"2"),
    ]
    done = log.clean(first_dirty=5, **FOUR_KEYS)
    assert done.summary.clean_end == 7
    assert (1, b"b", b"1") not in log.pairs()


def test_batch_with_more_keys_than_the_map_is_cleaned_in_several_passes() -> None:
    log = MadeLog()
    log.put((b"a", b"old"))
    log.put(*((b"%d" % n, b"v") for n in range(10)), (b"a", b"new"))
    log.roll()
    first_dirty, ends = 0, []
    while first_dirty < log.end_offset:
        first_dirty = log.clean(first_dirty=first_dirty, **FOUR_KEYS).summary.clean_end
        ends.append(first_dirty)
    assert ends == [4, 8, 12]
    assert [offset for offset, _, _ in log.pairs()] == list(range(1, 12))


def test_records_above_the_last_known_key_stay_even_without_a_key_or_a_value() -> None:
    log = MadeLog()
    log.put(*((b"%d" % n, b"v") for n in range(4)), (None, b"v"), (b"8", None), (b"9", b"v"))
    log.roll()
    done = log.clean(**FOUR_KEYS)
    assert done.summary.clean_end == 4
    assert done.summary.keyless_dropped == 0
    assert len(log.pairs()) == 7


def test_segments_above_the_last_known_key_are_left_alone() -> None:
    log = MadeLog()
    for n in range(10):
        log.put((b"%d" % n, b"v"))
        log.roll()
    done = log.clean(**FOUR_KEYS)
    assert done.summary.clean_end == 4
    assert [group.sources for group in done.groups] == [(0, 1, 2, 3)]


def test_gap_at_a_segments_end_counts_as_clean() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.skip(10)
    log.roll()
    log.put((b"b", b"1"))
    log.skip(5)
    log.roll()
    assert log.clean().summary.clean_end == 17


def test_map_takes_no_more_memory_than_the_dirty_offsets_need() -> None:
    """128 MiB by default are not allocated for a log of ten records."""
    log = MadeLog()
    log.put(*((b"%d" % n, b"v") for n in range(10)))
    log.roll()
    assert log.clean(memory_bytes=1 << 50).summary.clean_end == 10


def test_missing_index_of_aborted_transactions_fails_the_pass() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.mark(7, commit=False)
    log.roll()
    log.disk.remove(f"t-0/{0:020d}.txnindex")
    before = log.files()
    with pytest.raises(CleaningFailed, match="missing"):
        log.clean()
    assert log.files() == before
