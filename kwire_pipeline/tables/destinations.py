"""The tables to which a pipeline writes, and the transform that is applied to rows."""

from collections.abc import Callable

import attrs
from pyspark.sql import DataFrame

from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.table import Letters, Table


@attrs.frozen(kw_only=True)
class Destinations:
    """The tables of a batch, and the transform that is applied to rows."""

    table: Table
    dead_letters: Letters | None
    deletions: Table | None = None
    """The table that remembers deleted keys, if changes may arrive late."""
    transform: Callable[[DataFrame], DataFrame] | None = None

    def rows_of(self, batch: DataFrame, shape: Shape) -> DataFrame:
        """Return the rows that the good records of a classified batch become."""
        rows = frames.rows(batch, shape)
        return rows if self.transform is None else self.transform(rows)

    @property
    def tables(self) -> list[Letters]:
        every = (self.table, self.dead_letters, self.deletions)
        return [table for table in every if table is not None]
