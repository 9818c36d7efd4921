"""The range of a backfill: what the topics still have, and the run has reached."""

import attrs
import pytest

from kwire_pipeline.cli import parser
from kwire_pipeline.commands.backfill import (
    between,
    bound_of,
    check_known,
    check_same,
    check_supported,
    pieces,
    verify_start,
)
from kwire_pipeline.config.values import Mode, Start, TableFormat
from kwire_pipeline.engine.offsets import Range, Ranges
from kwire_pipeline.errors import Refusal
from tests.support.pipeline.many import place
from tests.support.pipeline.orders import ORDERS


def test_range_ends_where_the_checkpoint_is() -> None:
    """Records after it are those of the next run."""
    first, end = {"t": {0: 5, 1: 50}}, {"t": {0: 90, 1: 60}}
    ranges = between(first, end, {"t": {0: 30, 1: 40}}, {"t": {0: 0, 1: 0}})
    assert ranges == Ranges((Range("t", 0, 5, 30),))


def test_range_whose_records_are_gone_is_refused() -> None:
    with pytest.raises(Refusal, match="range starts at offset 5, but partition 0 of t begins at 7"):
        between({"t": {0: 5}}, {"t": {0: 9}}, {"t": {0: 9}}, {"t": {0: 7}})


def test_range_is_read_in_pieces() -> None:
    whole = Ranges((Range("t", 0, 5, 12), Range("t", 1, 0, 1)))
    assert [(p.partition, p.start, p.end) for p in pieces(whole, 3)] == [
        (0, 5, 8), (0, 8, 11), (0, 11, 12), (1, 0, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(2, 10, 2), (2, 30, 2), (2, 9, None), (12, 20, None)]
)
def test_verify_begins_with_a_range_that_joins_the_rows(
    start: int, end: int, expected: int | None
) -> None:
    at = attrs.evolve(place("t", 30).identity, start={"t": {0: 10}})
    ranges = Ranges((Range("t", 0, start, end),))
    begin = verify_start(at, ranges)
    assert begin == (None if expected is None else {"t": {0: expected}})


def test_bounds_are_times_or_offsets() -> None:
    assert bound_of("--from", '{"t": {"0": 7}}') == Start(offsets={"t": {0: 7}})
    assert bound_of("--to", "2026-11-01").timestamp_ms == 1793491200000
    with pytest.raises(Refusal, match="--to: expected earliest, latest, a time"):
        bound_of("--to", "yesterday")
    options = parser().parse_args(["backfill", "f.yaml", "--from", "a", "--to", "b"])
    assert (options.first, options.end, options.table) == ("a", "b", None)


def test_tables_that_do_not_show_their_records_are_refused() -> None:
    check_supported(ORDERS)
    by_key = attrs.evolve(ORDERS.table, mode=Mode.UPSERT, keys=("id",))
    with pytest.raises(Refusal, match=r"needs table\.sequence_by"):
        check_supported(attrs.evolve(ORDERS, table=by_key))
    check_supported(attrs.evolve(ORDERS, table=attrs.evolve(by_key, sequence_by=("at",))))
    parquet = attrs.evolve(ORDERS.table, format=TableFormat.PARQUET)
    with pytest.raises(Refusal, match="belong to no batch"):
        check_supported(attrs.evolve(ORDERS, table=parquet))


def test_bounds_that_name_unknown_partitions_are_refused() -> None:
    starts = {"t": {0: 0, 1: 0}}
    check_known("--from", Start(offsets={"t": {1: 7}}), starts)
    check_known("--to", Start(at_end=True), starts)
    for offsets in ({"t": {2: 7}}, {"T": {0: 7}}):
        with pytest.raises(Refusal, match="which the pipeline does not read"):
            check_known("--from", Start(offsets=offsets), starts)


def test_bounds_that_name_different_partitions_are_refused() -> None:
    first = Start(offsets={"t": {0: 0, 1: 0}})
    check_same(first, Start(offsets={"t": {0: 9, 1: 9}}))
    check_same(first, Start(at_end=True))
    with pytest.raises(Refusal, match="only one of --from and --to names partition 1 of t"):
        check_same(first, Start(offsets={"t": {0: 9}}))
