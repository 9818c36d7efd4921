"""The newest batches that a run wrote, recorded in a file beside the checkpoint.

Spark's checkpoint does not record which batches have rows. With this file, the next run notices
that a table was rolled back or restored from a backup, and is behind its checkpoint. The file is
written after the batch, so it never contains a batch that the tables did not have.
"""

import json
from collections.abc import Mapping
from typing import Final

import attrs

from kwire_pipeline.engine.batch import Result
from kwire_pipeline.engine.lease import Files
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Letters, Mark, mark_of, summary_of

FILE: Final = "written.json"


@attrs.frozen
class Written:
    """The newest batch of each table, by the table's full name."""

    marks: Mapping[str, Mark] = attrs.field(factory=dict)

    @classmethod
    def read(cls, folder: Files) -> "Written":
        """Read the file; the result is empty if the file is missing or damaged."""
        try:
            marks = {
                str(name): mark_of(summary)
                for name, summary in json.loads(folder.read(FILE) or "{}").items()
            }
        except (ValueError, AttributeError):
            return cls()
        return cls({name: mark for name, mark in marks.items() if mark is not None})

    def write(self, folder: Files) -> None:
        plain = {name: summary_of(mark) for name, mark in self.marks.items()}
        folder.write(FILE, json.dumps(plain, indent=1) + "\n")

    def after(self, result: Result, destinations: Destinations) -> "Written":
        """Return the newest batches after one more batch, which may lack rows for a table."""
        figures, letters = result.figures, destinations.dead_letters
        marks = dict(self.marks)
        if figures.rows or figures.deletions:
            marks[destinations.table.name] = result.mark
        if figures.dead_letters and letters is not None:
            marks[letters.name] = result.mark
        return Written(marks)

    def without(self, table: str) -> "Written":
        """Return the newest batches of the other tables."""
        return Written({name: mark for name, mark in self.marks.items() if name != table})

    def missing_batch(self, table: Letters, pipeline_id: str, *, by_rows: bool) -> int | None:
        """Return the newest batch of a pipeline that an existing table lost; None if it has all."""
        rolled_back = table.rolled_back(pipeline_id)
        if rolled_back is not None:
            return rolled_back
        mark = self.marks.get(table.name)
        if mark is None or mark.pipeline_id != pipeline_id:
            return None
        return mark.batch_id if table.lacks(mark, by_rows=by_rows) else None
