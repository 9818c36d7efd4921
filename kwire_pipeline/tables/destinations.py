"""The tables to which a pipeline writes, and the transform that is applied to rows."""

from collections.abc import Callable

import attrs
from pyspark.sql import DataFrame

from kwire_pipeline.tables.table import Letters, Table


@attrs.frozen(kw_only=True)
class Destinations:
    """The tables of a batch, and the transform that is applied to rows."""

    table: Table
    dead_letters: Letters | None
    deletions: Table | None = None
    """The table that remembers deleted keys, if changes may arrive late."""
    transform: Callable[[DataFrame], DataFrame] | None = None

    @property
    def tables(self) -> list[Letters]:
        every = (self.table, self.dead_letters, self.deletions)
        return [table for table in every if table is not None]
