"""The segments that a pass merges: invariant 84."""

from kwire.log.compaction.grouping import Candidate, groups
from kwire.log.config import LogConfig
from tests.support.log.compaction import MadeLog

GIB = 1 << 30
INT32_MAX = (1 << 31) - 1


def group_bases(*segments: tuple[int, int, int, int, int], size: int = GIB) -> list[list[int]]:
    """Return the base offsets of the groups."""
    together = groups([Candidate(*s) for s in segments], segment_bytes=size, index_bytes=1000)
    return [[segment.base_offset for segment in group] for group in together]


def test_groups_are_at_most_as_large_as_a_segment() -> None:
    assert group_bases(
        (0, 10, 60, 0, 0), (10, 20, 40, 0, 0), (20, 30, 1, 0, 0), (30, 40, 99, 0, 0), size=100
    ) == [[0, 10], [20, 30]]


def test_larger_segment_is_a_group_of_its_own() -> None:
    assert group_bases((0, 10, 101, 0, 0), (10, 20, 0, 0, 0), size=100) == [[0], [10]]


def test_indexes_of_a_group_are_at_most_as_large_as_those_of_a_segment() -> None:
    assert group_bases((0, 10, 1, 500, 0), (10, 20, 1, 500, 0), (20, 30, 1, 8, 0)) == [
        [0, 10],
        [20],
    ]
    assert group_bases((0, 10, 1, 0, 500), (10, 20, 1, 0, 500), (20, 30, 1, 0, 12)) == [
        [0, 10],
        [20],
    ]


def test_offsets_of_a_group_fit_its_indexes() -> None:
    assert group_bases((5, 10, 1, 0, 0), (10, 5 + INT32_MAX + 1, 1, 0, 0)) == [[5, 10]]
    assert group_bases((5, 10, 1, 0, 0), (10, 5 + INT32_MAX + 2, 1, 0, 0)) == [[5], [10]]


def test_empty_segment_joins_a_group_from_any_distance() -> None:
    far = 3 * INT32_MAX
    assert group_bases((0, 10, 1, 0, 0), (10, far, 0, 0, 0), (far, far + 1, 1, 0, 0)) == [
        [0, 10],
        [far],
    ]


def test_no_segments_are_no_groups() -> None:
    assert group_bases() == []


def test_log_whose_offsets_span_more_than_an_index_holds_is_cleaned_in_groups() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.roll()
    log.skip(INT32_MAX - 1)
    log.put((b"b", b"1"))  # at the last offset that indexes of the first segment can hold
    log.roll()
    log.put((b"a", b"2"))
    log.put((b"b", b"2"), (b"c", b"1"))
    log.roll()
    before = log.end_offset
    done = log.clean()
    assert [group.sources for group in done.groups] == [(0, 1), (INT32_MAX + 1,)]
    assert done.summary.clean_end == before
    assert log.pairs() == [
        (INT32_MAX + 1, b"a", b"2"),
        (INT32_MAX + 2, b"b", b"2"),
        (INT32_MAX + 3, b"c", b"1"),
    ]


def test_small_segments_become_one() -> None:
    log = MadeLog(config=LogConfig(segment_bytes=10_000))
    for n in range(20):
        log.put((b"%d" % n, b"x" * 900))
        log.roll()
    done = log.clean()
    assert [len(group.sources) for group in done.groups] == [10, 10]
    assert all(group.size <= 10_000 for group in done.groups)
    assert len(log.pairs()) == 20
