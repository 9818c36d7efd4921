"""Offsets of batches, as Spark's log has them."""

from typing import cast

import pytest

from kwire_pipeline.engine import offsets
from kwire_pipeline.engine.offline import read_entry
from kwire_pipeline.engine.offsets import Range, Ranges
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from tests.support.pipeline.runs import CheckpointFolder

ENTRY = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}
{"orders":{"1":7,"0":12}}"""


def test_entry_of_sparks_log_has_the_end_offsets() -> None:
    assert offsets.of_log_entry(ENTRY) == {"orders": {0: 12, 1: 7}}


@pytest.mark.parametrize("text", ["", ENTRY.replace("v1", "v2"), ENTRY + "\n{}", "v1\n{}"])
def test_entry_of_another_form_is_no_guess(text: str) -> None:
    with pytest.raises(ValueError, match="is unknown"):
        offsets.of_log_entry(text)


@pytest.mark.parametrize("text", ["", ENTRY[:-9], "v1\n{}\n[]"])
def test_entry_that_lost_its_text_is_refused_with_advice(text: str) -> None:
    """A machine that lost its power can leave a file without its contents."""
    folder = CheckpointFolder()
    folder.texts["offsets/3"] = text
    with pytest.raises(Refusal, match=r"offsets/3 .* cannot be read .* restore .* --adopt"):
        read_entry(cast(Folder, folder), 3)


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
