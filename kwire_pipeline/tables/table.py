"""The operations that the pipeline needs of every format of tables, and the mark of a batch."""

import datetime
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kwire_pipeline.engine.offsets import Offsets, Ranges, offsets_of
from kwire_pipeline.engine.schema import Difference
from kwire_pipeline.errors import Refusal

PIPELINE: Final = "kwire.pipeline-id"
BATCH: Final = "kwire.batch-id"
OFFSETS: Final = "kwire.offsets"
TOPIC_IDS: Final = "kwire.topic-ids"
LETTER_COUNT: Final = "kwire.dead-letters"
OWNER: Final = "kwire.pipeline."
"""The prefix of the table property that has a pipeline's id, by the pipeline's name."""
DISCARDED: Final = "kwire.discarded."
"""The prefix of the table property that has the ids whose rows a pipeline's new start deleted."""
KEYS: Final = "kwire.keys"
"""The table property that has the columns by which records change rows."""


@attrs.frozen
class Mark:
    """The identity of one batch; a table has the rows of a mark once."""

    pipeline_id: str
    batch_id: int
    ranges: Ranges
    topic_ids: Mapping[str, str] = attrs.field(factory=dict)
    """The ids of the batch's topics by name; none in marks of earlier versions."""
    letter_count: int | None = None
    """The number of the batch's dead letters; None in marks of earlier versions."""


@attrs.frozen
class Origin:
    """The names of the columns with a row's topic, partition and offset."""

    topic: str
    partition: str
    offset: str

    @property
    def spot(self) -> tuple[str, str, str]:
        return self.topic, self.partition, self.offset

    def condition(self, ranges: Ranges) -> str:
        """Return the SQL condition that a row is of one of the ranges."""
        parts = [
            f"(`{self.topic}` = '{part.topic}' AND `{self.partition}` = {part.partition} AND "
            f"`{self.offset}` >= {part.start} AND `{self.offset}` < {part.end})"
            for part in ranges.ranges
        ]
        return " OR ".join(parts) if parts else "false"

    def delete_topics(self, spark: SparkSession, table: str, topics: Sequence[str]) -> None:
        """Delete the rows of some topics from a table."""
        listed = ", ".join(f"'{topic}'" for topic in topics)
        if listed:
            spark.sql(f"DELETE FROM {table} WHERE `{self.topic}` IN ({listed})")

    def delete_statement(self, letters: str, table: str, origin: "Origin") -> str:
        """Return the SQL that deletes the dead letters whose offset a table has.

        This is the origin of the letters, ``origin`` that of the table.
        """
        names = {
            self.topic: origin.topic,
            self.partition: origin.partition,
            self.offset: origin.offset,
        }
        same = " AND ".join(f"own.`{name}` = other.`{name}`" for name in names)
        columns = ", ".join(f"`{theirs}` AS `{name}`" for name, theirs in names.items())
        return (
            f"MERGE INTO {letters} own USING (SELECT DISTINCT {columns} FROM {table}) other "
            f"ON {same} WHEN MATCHED THEN DELETE"
        )


LETTERS: Final = Origin("topic", "partition", "offset")
"""The origin columns of dead letters, which are the record's own."""


@attrs.frozen(kw_only=True)
class Size:
    """The size of a table as it is now."""

    rows: int
    files: int
    bytes: int


@attrs.frozen(kw_only=True)
class Upkeep:
    """The limits of maintenance."""

    now: datetime.datetime
    target_file_bytes: int
    expire_before: datetime.datetime
    keep_snapshots: int
    orphans_before: datetime.datetime


def summary_of(mark: Mark) -> dict[str, str]:
    """Return a mark as texts."""
    summary = {
        PIPELINE: mark.pipeline_id,
        BATCH: str(mark.batch_id),
        OFFSETS: mark.ranges.dump(),
    }
    if mark.topic_ids:
        ids = {topic: mark.topic_ids[topic] for topic in sorted(mark.topic_ids)}
        summary[TOPIC_IDS] = json.dumps(ids, separators=(",", ":"))
    if mark.letter_count is not None:
        summary[LETTER_COUNT] = str(mark.letter_count)
    return summary


def mark_of(summary: Mapping[str, str]) -> Mark | None:
    """Return the mark that texts have, None if they have none."""
    try:
        return Mark(
            summary[PIPELINE],
            int(summary[BATCH]),
            Ranges.parse(summary[OFFSETS]),
            dict(json.loads(summary.get(TOPIC_IDS, "{}"))),
            int(summary[LETTER_COUNT]) if LETTER_COUNT in summary else None,
        )
    except (ValueError, LookupError, TypeError):
        return None


def own_marks(marks: Iterable[Mark | None], properties: Mapping[str, str], own: str) -> list[Mark]:
    """Return the marks that are not another pipeline's, in their order.

    ``properties`` are those of the table, ``own`` is the name of this pipeline.
    """
    owners = owners_of(properties)
    others = {pipeline_id for name, pipeline_id in owners.items() if name != own}
    return [mark for mark in valid_marks(marks, properties) if mark.pipeline_id not in others]


def valid_marks(marks: Iterable[Mark | None], properties: Mapping[str, str]) -> list[Mark]:
    """Return the marks whose rows no new start has deleted, in their order."""
    discarded = {
        pipeline_id
        for key, text in properties.items()
        if str(key).startswith(DISCARDED)
        for pipeline_id in str(text).split(",")
    }
    return [mark for mark in marks if mark is not None and mark.pipeline_id not in discarded]


def discarded_ids(former: str | None, all_ids: Collection[str], own: Iterable[Mark]) -> str:
    """Return the text of the property of discarded ids.

    ``former`` is the text that it has, ``all_ids`` are those of all marks that are there, ``own``
    the marks that are discarded now. An id without a mark need not be remembered.
    """
    earlier_ids = {
        pipeline_id for pipeline_id in (former or "").split(",") if pipeline_id in all_ids
    }
    return ",".join(sorted(earlier_ids | {mark.pipeline_id for mark in own}))


def keys_of(text: str | None) -> tuple[str, ...]:
    """Return the columns that a table's property names."""
    return tuple(text.split(",")) if text else ()


def owners_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of pipelines by name that a table's properties have."""
    return {
        str(key).removeprefix(OWNER): str(text)
        for key, text in properties.items()
        if str(key).startswith(OWNER)
    }


def positions_of_rows(rows: DataFrame, origin: Origin) -> Offsets:
    """Return the offset after the last one that rows have, by topic and partition."""
    last = (
        rows.where(f"`{origin.offset}` IS NOT NULL")
        .groupBy(f"`{origin.topic}`", f"`{origin.partition}`")
        .agg(F.max(f"`{origin.offset}`"))
        .collect()
    )
    return offsets_of((row[0], row[1], row[2] + 1) for row in last)


def refuse_partitions(table: str, own: Sequence[str], chosen: Sequence[str]) -> None:
    """Raise Refusal for partitions that a table does not have, or lacks."""
    if [name.lower() for name in own] != [name.lower() for name in chosen]:
        raise Refusal(
            f"{table} has the partitions [{', '.join(own)}], and this file has "
            f"[{', '.join(chosen)}]: correct table.partition_by, or choose a new table"
        )


def of_topics(letters: DataFrame, topics: Collection[str]) -> DataFrame:
    """Return the dead letters of topics; other pipelines may use the same table."""
    return letters.where(F.col(LETTERS.topic).isin(list(topics)))


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def listed_properties(properties: Mapping[str, str]) -> str:
    """Return properties of a table as SQL lists them."""
    return ", ".join(f"{literal(key)} = {literal(text)}" for key, text in properties.items())


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set what a statement of SQL takes from its session alone, for the time of a block."""
    for key, text in settings.items():
        spark.conf.set(key, text)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


@contextmanager
def view_of(frame: DataFrame, mark: Mark) -> Iterator[str]:
    """Give a frame a name in its session for the time of a block."""
    name = f"kwire_{mark.pipeline_id[:8]}_{mark.batch_id}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


class Letters(Protocol):
    """The dead letters of one or more pipelines: a table of them, or a topic."""

    name: str
    """The full name, or the folder, as a query of Spark uses it."""

    def exists(self) -> bool: ...

    def check_ready(self) -> None:
        """Raise Refusal if a run must not begin with it as it is now; called before any write."""

    def create(self, schema: StructType) -> None:
        """Create the table with its partitions; called only if it does not exist."""

    def columns(self) -> StructType: ...

    def owners(self) -> dict[str, str]:
        """Return the ids of the pipelines that write this table, by their names."""

    def add_owner(self, pipeline: str, pipeline_id: str) -> None:
        """Remember the id of a pipeline, in place of an earlier one of the same name."""

    def has_batch(self, mark: Mark, *, by_rows: bool) -> bool:
        """Whether the rows of a batch are in the table, by its mark; of a topic, any of them.

        ``by_rows`` also takes a row with one of the batch's offsets for a proof: marks can expire.
        """

    def finish(self, pipeline: str) -> None:
        """Make visible what the last append of a pipeline committed; called before a run."""

    def last_batch(self, pipeline_id: str) -> int | None:
        """Return the last batch with a mark of the pipeline, None if there is no such mark."""

    def has_all_letters(self, mark: Mark) -> bool:
        """Whether all dead letters of a batch are there."""

    def has_letters(self, pipeline: str, topics: Collection[str]) -> bool:
        """Whether there are dead letters of a pipeline, of one of these topics."""

    def marks(self, pipeline: str) -> list[Mark]:
        """Return the marks that are there and not another pipeline's, the newest last."""

    def append(self, frame: DataFrame, mark: Mark) -> None:
        """Append the rows of a batch with its mark; into a table, all or none of them."""

    def append_rest(self, letters: DataFrame, mark: Mark) -> None:
        """Append the letters of a batch that are not there, when `has_batch` says some are."""

    def check_sizes(self, letters: DataFrame, mark: Mark) -> None:
        """Raise Refusal if a letter is too large to be written."""

    def delete_written(self, other: "Table", origin: Origin) -> int:
        """Delete the dead letters whose offset the other table has; return their number."""

    def positions(self) -> Offsets:
        """Return the offset after the last one in the table, by topic and partition."""

    def read(self) -> DataFrame:
        """Return the rows; of letters in a topic each once."""

    def copies(self) -> int:
        """Return the number of letters that `read` leaves out since they are there twice."""

    def may_lack_old(self) -> bool:
        """Whether letters can be gone because of their age."""

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

    def discard_marks(self, pipeline: str) -> None:
        """Make the marks of a pipeline count no more, since its rows are deleted."""


def other_writers(tables: Iterable[Letters], own: str, topics: Iterable[str]) -> dict[str, str]:
    """Return the topics that another pipeline writes to a table of this one, with its name.

    ``own`` is the name of this pipeline. Only the marks that are there say so. A table that this
    pipeline has not written yet is left out: its rows may be those of a former name.
    """
    names: dict[str, str] = {}
    own_topics = set(topics)
    for table in tables:
        owners = table.owners() if table.exists() else {}
        if own not in owners:
            continue
        for other in sorted(owners.keys() - {own}):
            for mark in table.marks(other):
                parts = mark.ranges.ranges if mark.pipeline_id == owners[other] else ()
                names |= {part.topic: other for part in parts if part.topic in own_topics}
    return names


class Table(Letters, Protocol):
    """A table that one or more pipelines write."""

    def evolve(self, changes: Difference) -> None:
        """Add and widen columns."""

    def check_partitions(self) -> None:
        """Raise Refusal if the table has other partitions than this file, and cannot change."""

    def table_id(self) -> str:
        """Return the id that this table has and a later one of the same name has not."""

    def keys(self) -> tuple[str, ...]:
        """Return the columns by which records change rows; none if rows are appended."""

    def set_keys(self, keys: Sequence[str]) -> None:
        """Remember the columns by which records change rows."""

    def merge(self, changes: DataFrame, keys: Sequence[str], mark: Mark) -> None:
        """Apply the changes of a batch, one for each key, with its mark: all or none of them."""

    def add(self, frame: DataFrame) -> None:
        """Append rows that belong to no batch."""

    def size(self) -> Size: ...


class Atomic:
    """The answers of a table, which has a batch whole or not at all."""

    def check_ready(self) -> None:
        """A run makes the table."""

    def has_all_letters(self: Letters, mark: Mark) -> bool:
        return self.has_batch(mark, by_rows=False)

    def has_letters(self: Letters, pipeline: str, topics: Collection[str]) -> bool:
        if pipeline not in self.owners():
            return False
        return of_topics(self.read(), topics).limit(1).count() > 0

    def append_rest(self, letters: DataFrame, mark: Mark) -> None:
        """Some letters of a batch are all of them."""

    def check_sizes(self, letters: DataFrame, mark: Mark) -> None:
        """Rows have any size."""

    def copies(self) -> int:
        return 0

    def may_lack_old(self) -> bool:
        return False
