"""Batches of delivery states after writes, compared with the delivery state of each offset."""

from hypothesis import given
from hypothesis import strategies as st

from kwire.share.persister import StateBatch
from kwire.share.state.batches import merge
from tests.support.share.persister import Stored

OFFSETS = st.integers(0, 14)


@st.composite
def batch(draw: st.DrawFn) -> StateBatch:
    first, last = sorted((draw(OFFSETS), draw(OFFSETS)))
    return StateBatch(first, last, draw(st.sampled_from((0, 2, 4))), draw(st.integers(1, 3)))


@given(st.lists(st.tuples(st.lists(batch(), max_size=4), st.integers(-1, 14)), max_size=6))
def test_each_offset_has_the_delivery_that_wins(
    writes: list[tuple[list[StateBatch], int]],
) -> None:
    merged: list[StateBatch] = []
    stored = Stored(state_epoch=0, start_offset=-1)
    for batches, start_offset in writes:
        merged = merge(merged, batches, start_offset)
        stored.start_offset = -1
        stored.merge(start_offset, batches)
        assert merged == stored.batches()


def test_later_delivery_replaces_the_middle_of_a_batch() -> None:
    merged = merge([StateBatch(0, 9, 0, 1)], [StateBatch(3, 5, 2, 1)], -1)
    assert merged == [StateBatch(0, 2, 0, 1), StateBatch(3, 5, 2, 1), StateBatch(6, 9, 0, 1)]


def test_write_that_arrives_late_changes_nothing() -> None:
    stored = [StateBatch(0, 9, 0, 2)]
    assert merge(stored, [StateBatch(3, 5, 4, 1)], -1) == stored


def test_batch_without_offsets_is_ignored() -> None:
    assert merge([StateBatch(0, 3, 0, 1)], [StateBatch(9, 8, 2, 1)], -1) == [StateBatch(0, 3, 0, 1)]
