"""The operations that the pipeline needs of every format of tables, and the mark of a batch."""

import datetime
from collections.abc import Sequence
from typing import Final, Protocol

import attrs
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kwire_pipeline.engine.offsets import Offsets, Ranges
from kwire_pipeline.engine.schema import Difference

PIPELINE: Final = "kwire.pipeline-id"
BATCH: Final = "kwire.batch-id"
OFFSETS: Final = "kwire.offsets"
OWNER: Final = "kwire.pipeline."
"""The prefix of the table property that has a pipeline's id, by the pipeline's name."""


@attrs.frozen
class Mark:
    """The identity of one batch; a table has the rows of a mark once."""

    pipeline_id: str
    batch_id: int
    ranges: Ranges


@attrs.frozen
class Origin:
    """The names of the columns with a row's topic, partition and offset."""

    topic: str
    partition: str
    offset: str

    def condition(self, ranges: Ranges) -> str:
        """Return the SQL condition that a row is of one of the ranges."""
        parts = [
            f"(`{self.topic}` = '{part.topic}' AND `{self.partition}` = {part.partition} AND "
            f"`{self.offset}` >= {part.start} AND `{self.offset}` < {part.end})"
            for part in ranges.ranges
        ]
        return " OR ".join(parts) if parts else "false"


@attrs.frozen(kw_only=True)
class Size:
    """The size of a table as it is now."""

    rows: int
    files: int
    bytes: int


@attrs.frozen(kw_only=True)
class Upkeep:
    """The limits of maintenance."""

    target_file_bytes: int
    expire_before: datetime.datetime
    keep_snapshots: int
    orphans_before: datetime.datetime


class Table(Protocol):
    """A table that one or more pipelines write."""

    name: str
    """The full name, or the folder, as a query of Spark uses it."""

    def exists(self) -> bool: ...

    def create(self, schema: StructType) -> None:
        """Create the table with its partitions; called only if it does not exist."""

    def evolve(self, changes: Difference) -> None:
        """Add and widen columns."""

    def table_id(self) -> str:
        """Return the id that this table has and a later one of the same name has not."""

    def columns(self) -> StructType: ...

    def owners(self) -> dict[str, str]:
        """Return the ids of the pipelines that write this table, by their names."""

    def add_owner(self, pipeline: str, pipeline_id: str) -> None:
        """Remember the id of a pipeline, in place of an earlier one of the same name."""

    def has_batch(self, mark: Mark, *, by_rows: bool) -> bool:
        """Whether the rows of a batch are in the table, by its mark.

        ``by_rows`` also takes a row with one of the batch's offsets for a proof: marks can expire.
        """

    def finish(self, pipeline: str) -> None:
        """Make visible what the last append of a pipeline committed; called before a run."""

    def last_batch(self, pipeline_id: str) -> int | None:
        """Return the last batch with a mark of the pipeline, None if there is no such mark."""

    def append(self, frame: DataFrame, mark: Mark) -> None:
        """Append the rows of a batch with its mark, all or none of them."""

    def add(self, frame: DataFrame) -> None:
        """Append rows that belong to no batch."""

    def delete_written(self, other: "Table", origin: Origin) -> int:
        """Delete the dead letters whose offset the other table has; return their number."""

    def positions(self) -> Offsets:
        """Return the offset after the last one in the table, by topic and partition."""

    def read(self) -> DataFrame: ...

    def size(self) -> Size: ...

    def protect_marks(self) -> None:
        """Keep the newest mark of each writer from expiring."""

    def compact(self, upkeep: Upkeep) -> str:
        """Join small files; return a line about it."""

    def expire(self, upkeep: Upkeep) -> list[str]:
        """Remove old snapshots and files that belong to none; return lines about it."""

    def check_delete(self) -> None:
        """Raise Refusal if the rows of the table cannot be deleted."""

    def delete(self, topics: Sequence[str]) -> None:
        """Delete the rows of topics."""
