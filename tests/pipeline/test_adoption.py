"""The newest batch of a table and its dead letters is the one that can be half written."""

import attrs

from kwire_pipeline.engine.adoption import newest_of
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.tables.table import Mark

ROWS = Mark("11", 3, Ranges.between({}, {"t": {0: 5, 1: 5}}), letter_count=2)
LETTERS = attrs.evolve(ROWS, ranges=Ranges.between({}, {"t": {0: 5}}))


def test_newest_batch_is_of_the_newest_checkpoint() -> None:
    assert newest_of([], [], "11") == []
    assert newest_of([], [LETTERS], "11") == [LETTERS]
    assert newest_of([ROWS], [LETTERS], "11") == [ROWS]
    for batch_id in (2, 4):
        other = attrs.evolve(LETTERS, batch_id=batch_id)
        assert newest_of([ROWS], [other], "11") == [other if batch_id == 4 else ROWS]
    earlier = attrs.evolve(LETTERS, pipeline_id="former", batch_id=9)
    assert newest_of([ROWS], [earlier], "11") == [ROWS]
    assert newest_of([earlier], [ROWS], "11") == [ROWS]


def test_both_marks_count_if_neither_is_of_the_newest_checkpoint() -> None:
    """The runs of the newest one wrote nothing, or the table does not know the pipeline."""
    earlier = attrs.evolve(LETTERS, pipeline_id="former")
    for owner in ("22", None):
        assert newest_of([ROWS], [earlier], owner) == [ROWS, earlier]
