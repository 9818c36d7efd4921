"""The limit in bytes: how many offsets a batch may read, from the batches before."""

import attrs
import pytest

from kwire_pipeline.config.model import Limits
from kwire_pipeline.engine.reporting.figures import Batch
from kwire_pipeline.pace import FILE, FIRST_OFFSETS, Pace, is_off
from tests.support.pipeline.files import Files

BATCH = Batch(
    batch_id=0,
    rows=10,
    dead_letters=0,
    dropped=0,
    unmet={},
    bytes=1000,
    offsets=10,
    lag=0,
    elapsed_s=0.1,
)
LIMITS = Limits(max_bytes_per_trigger=50_000, max_offsets_per_trigger=10_000)


def test_without_a_limit_in_bytes_the_limit_in_offsets_counts() -> None:
    assert Pace(100.0).max_offsets(Limits(max_offsets_per_trigger=7)) == 7


def test_first_batch_is_small_and_the_next_one_is_of_the_size_of_its_records() -> None:
    assert Pace().max_offsets(LIMITS) == FIRST_OFFSETS
    assert Pace().after(BATCH).max_offsets(LIMITS) == 500


@pytest.mark.parametrize(("size", "offsets"), [(0.5, 10_000), (1_000_000, 1)])
def test_batch_has_an_offset_and_no_more_than_the_limit_in_offsets(
    size: float, offsets: int
) -> None:
    assert Pace(size).max_offsets(LIMITS) == offsets


def test_larger_records_count_at_once_and_smaller_ones_by_half() -> None:
    assert Pace(50.0).after(BATCH) == Pace(100.0)
    assert Pace(200.0).after(BATCH) == Pace(150.0)


def test_batch_without_records_says_nothing_about_their_size() -> None:
    """It has only the offsets of aborted transactions, for example."""
    assert Pace(50.0).after(attrs.evolve(BATCH, bytes=0)) == Pace(50.0)
    assert Pace(50.0).after(attrs.evolve(BATCH, bytes=0, offsets=0)) == Pace(50.0)


def test_query_is_restarted_only_if_its_limit_is_far_off() -> None:
    assert not is_off(100, 100)
    assert not is_off(100, 120)
    assert not is_off(120, 100)
    assert is_off(100, 130)
    assert is_off(130, 100)


@pytest.mark.parametrize("text", ["", "{}", "no json", '{"bytes_per_offset": 0}', "[]"])
def test_next_run_has_the_size_or_begins_anew(text: str) -> None:
    files = Files()
    Pace(12.5).write(files)
    assert Pace.read(files) == Pace(12.5)
    files.write(FILE, text)
    assert Pace.read(files) == Pace()
