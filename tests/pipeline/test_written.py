"""A run notices that a table lost batches that an earlier run wrote."""

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.written import FILE, Written
from kwire_pipeline.tables.table import Mark
from tests.support.pipeline.files import Files


class Table:
    """A table with some batches of one pipeline."""

    def __init__(self, *batches: int, rolled_back: int | None = None) -> None:
        self.name = "shop.orders"
        self.batches = batches
        self._rolled_back = rolled_back

    def rolled_back(self, pipeline_id: str) -> int | None:
        return self._rolled_back

    def lacks(self, mark: Mark, *, by_rows: bool) -> bool:
        return mark.batch_id not in self.batches


NEWEST = Mark("11", 3, Ranges.parse('{"orders":{"0":[5,9]}}'), {"orders": "id"}, 2)
NOTE = Written({"shop.orders": NEWEST})


def missing(note: Written, table: Table, pipeline_id: str = "11") -> int | None:
    return note.missing_batch(table, pipeline_id, by_rows=True)  # type: ignore[arg-type]


def test_note_is_kept_beside_the_checkpoint() -> None:
    files = Files()
    assert Written.read(files) == Written()
    NOTE.write(files)
    assert Written.read(files) == NOTE
    files.texts[FILE] = files.texts[FILE][:-20]
    assert Written.read(files) == Written()


def test_table_from_a_backup_lacks_the_noted_batch() -> None:
    assert missing(NOTE, Table(0, 2, 3)) is None
    assert missing(NOTE, Table(0, 2)) == 3
    assert missing(NOTE, Table(0, 2), pipeline_id="22") is None
    assert missing(Written(), Table()) is None


def test_table_whose_rows_were_moved_is_left_out() -> None:
    assert NOTE.without("shop.dead") == NOTE
    assert missing(NOTE.without("shop.orders"), Table()) is None


def test_batch_that_the_table_shows_as_rolled_back_is_missing_without_a_note() -> None:
    assert missing(Written(), Table(0, rolled_back=4)) == 4
