"""The common part of Iceberg and Delta tables, whose commits are versions with marks.

Their properties store what belongs to the whole table: the pipelines that write it, the rule of
changes by key, marks that a new start has invalidated, and the age of forgotten deletions.
"""

import datetime
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kwire_pipeline.engine.offsets import Offsets, later
from kwire_pipeline.engine.schema import (
    Difference,
    check_fits,
    in_types_of,
    is_same,
    sql_type,
)
from kwire_pipeline.tables.table import (
    DISCARDED,
    FORGOTTEN,
    KEYS,
    OWNER,
    Atomic,
    Mark,
    Origin,
    discarded_ids,
    older_deletions,
    own_marks,
    owners_of,
    positions_of_rows,
    valid_marks,
)


class Versioned(Atomic, ABC):
    """A table with properties, and with a mark in each version that a batch made."""

    name: str
    _spark: SparkSession
    _origin: Origin
    _was_there: bool = False
    """True once the table was found; a run asks a dozen times, and each look reads metadata."""

    def exists(self) -> bool:
        """Return whether the table exists; a table that was found once is not looked up again."""
        self._was_there = self._was_there or self._is_there()
        return self._was_there

    @abstractmethod
    def _is_there(self) -> bool:
        """Look the table up."""

    @abstractmethod
    def read(self) -> DataFrame: ...

    @abstractmethod
    def columns(self) -> StructType: ...

    @abstractmethod
    def _properties(self) -> Mapping[str, str]:
        """Return the current properties of the table."""

    @abstractmethod
    def _set_property(self, key: str, text: str) -> None: ...

    @abstractmethod
    def _marks(self) -> list[Mark]:
        """Return the marks that make up the current state, newest last."""

    def owners(self) -> dict[str, str]:
        return owners_of(self._properties())

    def add_owner(self, pipeline: str, pipeline_id: str) -> None:
        self._set_property(f"{OWNER}{pipeline}", pipeline_id)

    def keys(self) -> tuple[str, ...]:
        text = self._properties().get(KEYS)
        return tuple(text.split(",")) if text else ()

    def set_keys(self, keys: Sequence[str]) -> None:
        self._set_property(KEYS, ",".join(keys))

    def finish(self, pipeline: str) -> None:
        """Do nothing: a version is visible as soon as it is committed."""

    def marks(self, pipeline: str) -> list[Mark]:
        return own_marks(self._marks(), self._properties(), pipeline)

    def marks_of(self, pipeline_ids: Collection[str]) -> list[Mark]:
        marks = valid_marks(self._marks(), self._properties())
        return [mark for mark in marks if mark.pipeline_id in pipeline_ids]

    def positions(self) -> Offsets:
        positions = positions_of_rows(self.read(), self._origin)
        for mark in valid_marks(self._marks(), self._properties()):
            positions = later(positions, mark.ranges.ends)
        return positions

    def forget(self, before: datetime.datetime) -> None:
        """Forget deletions that were written before a time.

        The time is stored first, so that a run that ends in between never leaves deletions
        forgotten without a trace.
        """
        older = older_deletions(before)
        if self.read().where(older).isEmpty():
            return
        former = self.forgotten_before()
        self._set_property(FORGOTTEN, max(before, former or before).isoformat())
        self._spark.sql(f"DELETE FROM {self.name} WHERE {older}")

    def forgotten_before(self) -> datetime.datetime | None:
        text = self._properties().get(FORGOTTEN)
        return None if text is None else datetime.datetime.fromisoformat(text)

    def _widen(self, changes: Difference) -> None:
        for place in changes.widened:
            self._spark.sql(
                f"ALTER TABLE {self.name} ALTER COLUMN {place.sql_name} TYPE {sql_type(place.type)}"
            )

    def _in_own_types(self, frame: DataFrame) -> DataFrame:
        """Return rows in the table's types; columns and fields that the rows lack are null."""
        return self._in_types(frame, self.columns())

    def _changes_in_own_types(self, changes: DataFrame) -> DataFrame:
        """Return changes by key in the table's types, without columns that they lack."""
        names = {field.name.lower(): field for field in self.columns().fields}
        own = [names.get(field.name.lower(), field) for field in changes.schema.fields]
        return self._in_types(changes, StructType(own))

    def _in_types(self, frame: DataFrame, table: StructType) -> DataFrame:
        """Return rows in these types; raise Refusal for rows that the types cannot hold.

        Most rows have these types already; each expression would take several calls to the JVM.
        """
        if is_same(frame.schema, table):
            return frame
        check_fits(table, frame.schema, self.name)
        return frame.select(*in_types_of(frame.schema, table))

    def delete_letters(self, spots: DataFrame) -> int:
        before = self.read().count()
        self._origin.delete_spots(self.name, spots)
        return before - self.read().count()

    def check_delete(self) -> None:
        """Do nothing: the rows of a versioned table can be deleted."""

    def delete(self, topics: Sequence[str]) -> None:
        self._origin.delete_topics(self._spark, self.name, topics)

    def discard_marks(self, pipeline: str) -> None:
        key = f"{DISCARDED}{pipeline}"
        ids = {mark.pipeline_id for mark in self._marks()}
        text = discarded_ids(self._properties().get(key), ids, self.marks(pipeline))
        self._set_property(key, text)
