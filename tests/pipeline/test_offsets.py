"""Offsets of batches, as Spark's log has them."""

import pytest

from kwire_pipeline.engine import offsets
from kwire_pipeline.engine.offsets import Range, Ranges

ENTRY = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}
{"orders":{"1":7,"0":12}}"""


def test_entry_of_sparks_log_has_the_end_offsets() -> None:
    assert offsets.of_log_entry(ENTRY) == {"orders": {0: 12, 1: 7}}


@pytest.mark.parametrize("text", [ENTRY.replace("v1", "v2"), ENTRY + "\n{}", "v1\n{}"])
def test_entry_of_another_form_is_no_guess(text: str) -> None:
    with pytest.raises(ValueError, match="is unknown"):
        offsets.of_log_entry(text)


def test_ranges_leave_out_partitions_without_records() -> None:
    start = {"orders": {0: 5, 1: 7}}
    ranges = Ranges.between(start, {"orders": {0: 12, 1: 7, 2: 3}})
    assert ranges.ranges == (Range("orders", 0, 5, 12), Range("orders", 2, 0, 3))
    assert ranges.count == 10
    assert ranges.ends == {"orders": {0: 12, 2: 3}}
    assert Ranges.parse(ranges.dump()) == ranges
    assert offsets.parse(offsets.dump(start)) == start


def test_later_offsets_and_lag() -> None:
    merged = offsets.later({"a": {0: 5}, "b": {0: 1}}, {"a": {0: 3, 1: 4}})
    assert merged == {"a": {0: 5, 1: 4}, "b": {0: 1}}
    assert offsets.lag(merged, {"a": {0: 9, 1: 4, 2: 2}}) == 6
