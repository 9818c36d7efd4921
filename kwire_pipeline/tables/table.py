"""The operations that every table format must provide, and the mark of a batch.

Rules: in a table, the rows of a batch become visible together with its mark, which proves that they
are in the table. Marks can expire; then the offsets in the rows are the proof.
"""

import datetime
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn, Protocol

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kwire_pipeline.engine.offsets import Offsets, Range, Ranges, offsets_of
from kwire_pipeline.engine.schema import Difference
from kwire_pipeline.errors import Refusal

PIPELINE: Final = "kwire.pipeline-id"
BATCH: Final = "kwire.batch-id"
OFFSETS: Final = "kwire.offsets"
TOPIC_IDS: Final = "kwire.topic-ids"
LETTER_COUNT: Final = "kwire.dead-letters"
NAME: Final = "kwire.pipeline"
OWNER: Final = "kwire.pipeline."
"""The prefix of the table property with a pipeline's id; the pipeline's name follows it."""
DISCARDED: Final = "kwire.discarded."
"""The prefix of the table property with the ids whose rows a new start has deleted."""
FORGOTTEN: Final = "kwire.forgotten-before"
"""The property of a table of deletions: the time before which deletions may be forgotten."""
REMEMBERED: Final = "__remembered_at"
"""The column of a table of deletions: the time at which a run wrote the row."""
KEYS: Final = "kwire.keys"
"""The table property with the rule of changes: the keys, then ``by`` and the sequence."""


@attrs.frozen
class Mark:
    """The identity of one batch; a table has the rows of a batch with this mark at most once."""

    pipeline_id: str
    batch_id: int
    ranges: Ranges
    topic_ids: Mapping[str, str] = attrs.field(factory=dict)
    """The ids of the batch's topics by name; empty in marks from earlier versions."""
    letter_count: int | None = None
    """The number of the batch's dead letters; None in marks from earlier versions."""
    pipeline: str = ""
    """The name of the pipeline; empty in marks from earlier versions."""


@attrs.frozen
class Origin:
    """The names of the columns with a row's topic, partition and offset."""

    topic: str
    partition: str
    offset: str

    @property
    def spot(self) -> tuple[str, str, str]:
        return self.topic, self.partition, self.offset

    def spots(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Return the columns with a row's origin, named as in a record, and the ``others``."""
        names = dict(zip(LETTERS.spot, self.spot, strict=True))
        return rows.select(*[F.col(f"`{name}`").alias(as_) for as_, name in names.items()], *others)

    def condition(self, ranges: Ranges) -> str:
        """Return the SQL condition that a row is in one of the ranges."""
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

    def delete_spots(self, table: str, spots: DataFrame) -> None:
        """Delete the rows of some records, given by topic, partition and offset in ``spots``."""
        same = " AND ".join(f"own.`{name}` = other.`{name}`" for name in self.spot)
        with view_of(spots.toDF(*self.spot).distinct()) as view:
            spots.sparkSession.sql(
                f"MERGE INTO {table} own USING `{view}` other ON {same} WHEN MATCHED THEN DELETE"
            )


LETTERS: Final = Origin("topic", "partition", "offset")
"""The origin columns of dead letters, named as in the record."""


@attrs.frozen(kw_only=True)
class Size:
    """The current size of a table."""

    rows: int
    files: int
    bytes: int


@attrs.frozen(kw_only=True)
class Entry:
    """A batch in the history of a table."""

    mark: Mark
    at: datetime.datetime
    rows: int | None
    """The rows that were added; None if the history does not say."""


@attrs.frozen
class History:
    """A pipeline's batches in a table since a time."""

    entries: tuple[Entry, ...]
    since: datetime.datetime | None = None
    """The time before which the history is gone; None if it has everything."""


@attrs.frozen(kw_only=True)
class Upkeep:
    """The limits of maintenance."""

    now: datetime.datetime
    since: datetime.datetime
    """Skip tables that another pipeline of the process has maintained after this time."""
    forget_before: datetime.datetime
    """Deletions that were written before this time are forgotten."""
    target_file_bytes: int
    expire_before: datetime.datetime
    keep_snapshots: int
    orphans_before: datetime.datetime


def summary_of(mark: Mark) -> dict[str, str]:
    """Return a mark as the summary that a table stores."""
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
    if mark.pipeline:
        summary[NAME] = mark.pipeline
    return summary


def mark_of(summary: Mapping[str, str]) -> Mark | None:
    """Return the mark in a summary; None if it has none."""
    try:
        return Mark(
            summary[PIPELINE],
            int(summary[BATCH]),
            Ranges.parse(summary[OFFSETS]),
            dict(json.loads(summary.get(TOPIC_IDS, "{}"))),
            int(summary[LETTER_COUNT]) if LETTER_COUNT in summary else None,
            summary.get(NAME, ""),
        )
    except (ValueError, LookupError, TypeError):
        return None


def own_marks(marks: Iterable[Mark | None], properties: Mapping[str, str], own: str) -> list[Mark]:
    """Return, in order, the marks that are not another pipeline's.

    ``properties`` are those of the table; ``own`` is the name of this pipeline. A mark without a
    name is another pipeline's only if that pipeline still has the mark's id: each adoption and each
    new start gives it another one.
    """
    owners = owners_of(properties)
    others = {pipeline_id for name, pipeline_id in owners.items() if name != own}
    return [
        mark
        for mark in valid_marks(marks, properties)
        if mark.pipeline == own or (not mark.pipeline and mark.pipeline_id not in others)
    ]


def valid_marks(marks: Iterable[Mark | None], properties: Mapping[str, str]) -> list[Mark]:
    """Return, in order, the marks whose rows have not been deleted by a new start."""
    discarded = {
        pipeline_id
        for key, text in properties.items()
        if str(key).startswith(DISCARDED)
        for pipeline_id in str(text).split(",")
    }
    return [mark for mark in marks if mark is not None and mark.pipeline_id not in discarded]


def discarded_ids(former: str | None, all_ids: Collection[str], own: Iterable[Mark]) -> str:
    """Return the text of the property with discarded ids.

    ``former`` is its current text, ``all_ids`` are the ids of all existing marks, and ``own`` are
    the marks to discard now. Ids without a mark are dropped.
    """
    earlier_ids = {
        pipeline_id for pipeline_id in (former or "").split(",") if pipeline_id in all_ids
    }
    return ",".join(sorted(earlier_ids | {mark.pipeline_id for mark in own}))


def owners_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the pipeline ids in a table's properties, by pipeline name."""
    return {
        str(key).removeprefix(OWNER): str(text)
        for key, text in properties.items()
        if str(key).startswith(OWNER)
    }


def positions_of_rows(rows: DataFrame, origin: Origin) -> Offsets:
    """Return the offset after the last row of each partition."""
    last = (
        rows.where(f"`{origin.offset}` IS NOT NULL")
        .groupBy(f"`{origin.topic}`", f"`{origin.partition}`")
        .agg(F.max(f"`{origin.offset}`"))
        .collect()
    )
    return offsets_of((row[0], row[1], row[2] + 1) for row in last)


def ranges_of_rows(rows: DataFrame, origin: Origin) -> list[Range]:
    """Return the smallest range of offsets around the rows of each partition."""
    offset = F.col(f"`{origin.offset}`")
    bounds = (
        rows.where(offset.isNotNull())
        .groupBy(f"`{origin.topic}`", f"`{origin.partition}`")
        .agg(F.min(offset), F.max(offset))
        .collect()
    )
    return [Range(row[0], row[1], row[2], row[3] + 1) for row in bounds]


def refuse_partitions(table: str, own: Sequence[str], chosen: Sequence[str]) -> None:
    """Raise Refusal if the table's partitions differ from the chosen ones."""
    if [name.lower() for name in own] != [name.lower() for name in chosen]:
        raise Refusal(
            f"{table} has the partitions [{', '.join(own)}], and this file has "
            f"[{', '.join(chosen)}]: correct table.partition_by, or choose a new table"
        )


def refuse_rollback(table: str, batch_id: int) -> NoReturn:
    raise Refusal(
        f"{table} was rolled back during the run and lacks batch {batch_id}: undo that, or run "
        "with --adopt"
    )


def of_topics(letters: DataFrame, topics: Collection[str]) -> DataFrame:
    """Return the dead letters of the topics; other pipelines may use the same table."""
    return letters.where(F.col(LETTERS.topic).isin(list(topics)))


def literal(text: str) -> str:
    """Return a text as a SQL literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def listed_properties(properties: Mapping[str, str]) -> str:
    """Return table properties as a SQL list."""
    return ", ".join(f"{literal(key)} = {literal(text)}" for key, text in properties.items())


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set session settings during a block, for SQL statements that read them from the session."""
    for key, text in settings.items():
        spark.conf.set(key, text)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


@contextmanager
def view_of(frame: DataFrame) -> Iterator[str]:
    """Give a frame a name in its session during a block."""
    name = f"kwire_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


class Letters(Protocol):
    """The dead letters of one or more pipelines: a table of them, or a topic."""

    name: str
    """The full name, or the folder, as Spark queries use it."""

    def exists(self) -> bool: ...

    def check_ready(self) -> None:
        """Raise Refusal if the current state does not permit a run; called before any write."""

    def create(self, schema: StructType) -> None:
        """Create the table with its partitions; called only if it does not exist."""

    def columns(self) -> StructType: ...

    def owners(self) -> dict[str, str]:
        """Return the ids of the pipelines that write this table, by name."""

    def add_owner(self, pipeline: str, pipeline_id: str) -> None:
        """Store the id of a pipeline, replacing an earlier id under the same name."""

    def has_batch(self, mark: Mark, *, by_rows: bool) -> bool:
        """Return whether the mark shows that a batch is written; in a topic, perhaps partly.

        With ``by_rows``, a row with one of the batch's offsets is also accepted as proof, because
        marks can expire.
        """

    def finish(self, pipeline: str) -> None:
        """Make visible what a pipeline's last append committed.

        Called before a run, and before a run repeats a batch in which its last query failed.
        """

    def last_batch(self, pipeline_id: str) -> int | None:
        """Return the last batch with a mark of the pipeline; None if there is no such mark."""

    def rolled_back(self, pipeline_id: str) -> int | None:
        """Return a batch of the pipeline that was rolled back, if the table shows that."""

    def lacks(self, mark: Mark, *, by_rows: bool) -> bool:
        """Return whether a batch that was written is no longer in the table."""

    def has_all_letters(self, mark: Mark) -> bool:
        """Return whether all dead letters of a batch are in the table or topic."""

    def has_letters(self, pipeline: str, topics: Collection[str]) -> bool:
        """Return whether there are dead letters of a pipeline from one of these topics."""

    def marks(self, pipeline: str) -> list[Mark]:
        """Return the existing marks that are not another pipeline's, newest last."""

    def marks_of(self, pipeline_ids: Collection[str]) -> list[Mark]:
        """Return the existing marks with these ids; they are read once, however many ids."""

    def history(self, pipeline_id: str, since: datetime.datetime) -> History | None:
        """Return a pipeline's batches after a time; None if the table keeps no history."""

    def append(self, frame: DataFrame, mark: Mark) -> None:
        """Append the rows of a batch with its mark; in a table, all of them or none."""

    def add(self, frame: DataFrame) -> None:
        """Append rows that belong to no batch."""

    def append_rest(self, letters: DataFrame, mark: Mark) -> None:
        """Append the missing letters of a batch of which `has_batch` has found some."""

    def check_sizes(self, letters: DataFrame, mark: Mark) -> None:
        """Raise Refusal if a letter is too large to be written."""

    def delete_letters(self, spots: DataFrame) -> int:
        """Delete the dead letters of some records; return their number."""

    def positions(self) -> Offsets:
        """Return the offset after the last row of each partition."""

    def read(self) -> DataFrame:
        """Return the rows; letters in a topic without their duplicates."""

    def copies(self) -> int:
        """Return the number of letters that `read` leaves out as duplicates."""

    def may_lack_old(self) -> bool:
        """Return whether letters may be missing because of their age."""

    def kept_from(self, pipeline_id: str) -> Offsets:
        """Return the offsets from which on no letter can be missing because of its age.

        A partition is absent if that is unknown.
        """

    def protect_marks(self) -> None:
        """Keep the newest mark of each writer from expiring."""

    def compact(self, upkeep: Upkeep) -> str:
        """Join small files; return a line about it."""

    def expire(self, upkeep: Upkeep) -> list[str]:
        """Remove old snapshots, and files that belong to none; return lines about it."""

    def check_delete(self) -> None:
        """Raise Refusal if the rows of the table cannot be deleted."""

    def delete(self, topics: Sequence[str]) -> None:
        """Delete the rows of some topics."""

    def discard_marks(self, pipeline: str) -> None:
        """Invalidate the marks of a pipeline, because its rows are deleted."""


def other_writers(tables: Iterable[Letters], own: str, topics: Iterable[str]) -> dict[str, str]:
    """Return the topics that other pipelines write to this pipeline's tables, with their names.

    ``own`` is the name of this pipeline. Only existing marks show this. A table that this pipeline
    has not written yet is left out, because its rows may come from the same pipeline under an
    earlier name.
    """
    names: dict[str, str] = {}
    own_topics = set(topics)
    for table in tables:
        owners = table.owners() if table.exists() else {}
        others = {pipeline_id: name for name, pipeline_id in owners.items() if name != own}
        if own not in owners or not others:
            continue
        for mark in sorted(table.marks_of(others), key=lambda mark: others[mark.pipeline_id]):
            topics_of_mark = {part.topic for part in mark.ranges.ranges}
            names |= dict.fromkeys(topics_of_mark & own_topics, others[mark.pipeline_id])
    return names


def older_deletions(before: datetime.datetime) -> str:
    """Return the SQL condition that a deletion was written before a time."""
    return f"`{REMEMBERED}` < TIMESTAMP '{before.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}Z'"


class Table(Letters, Protocol):
    """A table that one or more pipelines write."""

    def evolve(self, changes: Difference) -> None:
        """Add and widen columns."""

    def check_partitions(self) -> None:
        """Raise Refusal if the table's partitions differ from the file's and cannot change."""

    def table_id(self) -> str:
        """Return an id that a later table of the same name will not have."""

    def keys(self) -> tuple[str, ...]:
        """Return the rule by which records change rows; empty if rows are appended."""

    def set_keys(self, keys: Sequence[str]) -> None:
        """Store the rule by which records change rows."""

    def merge(
        self,
        changes: DataFrame,
        keys: Sequence[str],
        mark: Mark | None,
        order: Sequence[str] = (),
    ) -> None:
        """Apply a batch's changes, one for each key, with its mark: all of them or none.

        With columns in ``order``, changes apply only to older rows. Changes that belong to no batch
        have no mark.
        """

    def forget(self, before: datetime.datetime) -> None:
        """Forget deletions that were written before a time, and store the time."""

    def forgotten_before(self) -> datetime.datetime | None:
        """Return the time before which deletions may have been forgotten; None if none were."""

    def size(self) -> Size: ...


class Atomic:
    """The methods of a table that contains a batch completely or not at all."""

    def check_ready(self) -> None:
        """Do nothing: a run creates the table."""

    def has_all_letters(self: Letters, mark: Mark) -> bool:
        return self.has_batch(mark, by_rows=False)

    def lacks(self: Letters, mark: Mark, *, by_rows: bool) -> bool:
        """Return whether the table ends before a batch that was written."""
        last = self.last_batch(mark.pipeline_id)
        return last is None or last < mark.batch_id

    def has_letters(self: Letters, pipeline: str, topics: Collection[str]) -> bool:
        if pipeline not in self.owners():
            return False
        return of_topics(self.read(), topics).limit(1).count() > 0

    def append_rest(self, letters: DataFrame, mark: Mark) -> None:
        """Do nothing: if the table has some letters of a batch, it has all of them."""

    def check_sizes(self, letters: DataFrame, mark: Mark) -> None:
        """Do nothing: rows may have any size."""

    def copies(self) -> int:
        return 0

    def may_lack_old(self) -> bool:
        return False

    def kept_from(self, pipeline_id: str) -> Offsets:
        """Return nothing: letters are not removed because of their age."""
        return {}
