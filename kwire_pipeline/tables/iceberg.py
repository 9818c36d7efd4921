"""An Iceberg table: a batch is one snapshot, whose summary has the batch's mark.

A batch is in the table if a snapshot of the current state has its mark or, because snapshots
expire, if a row has one of its offsets: a snapshot is atomic, so one row proves all of them. Rows
prove nothing if another pipeline writes the same topics to the table. Changes by key that leave no
row and whose mark has expired are applied again, which changes nothing.

A batch is appended only to the state in which it is known to be absent: Iceberg refuses the commit
if another writer has added rows since. So two runs that hold the same lease, one of them after a
pause, cannot both append a batch. Compaction is no conflict, because it adds no rows.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

import attrs
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kwire_pipeline.config.values import Partition, Sort
from kwire_pipeline.engine.schema import Difference, sql_column
from kwire_pipeline.engine.storage import java_class, texts_of
from kwire_pipeline.errors import Overtaken
from kwire_pipeline.tables.iceberg_history import read_history
from kwire_pipeline.tables.merge import merge_changes
from kwire_pipeline.tables.table import (
    BATCH,
    PIPELINE,
    History,
    Mark,
    Origin,
    Size,
    Upkeep,
    listed_properties,
    mark_of,
    other_writers,
    owners_of,
    refuse_rollback,
    summary_of,
)
from kwire_pipeline.tables.versioned import Versioned

PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Old metadata files are deleted, so that a table of thousands of small batches stays small."""

TRIES: Final = 20
"""The number of attempts to append while other writers append as well."""
CONFLICTS: Final = (
    "Found conflicting files",
    "Cannot determine history between starting snapshot",
)
"""Iceberg's error messages if rows were added, or if the snapshot to compare with has expired."""
SNAPSHOT_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."
"""The prefix of settings that a SQL statement adds to its snapshot's summary."""
HADOOP_IO: Final = "org.apache.iceberg.hadoop.HadoopFileIO"
"""The class that accesses a table's files through Hadoop's file systems."""
POSITION: Final = 1
"""In Iceberg's metadata, the content type of a file that deletes rows by position."""
WRITERS: Final = (PIPELINE, "spark.sql.streaming.queryId", "flink.job-id")
"""The summary keys in which writers store their id, to find their last commit."""

OTHER_WRITERS: Final = 20
"""The number of writers beside the pipelines whose last commits are kept."""
TAG: Final = "writer-"
"""The prefix of the tags that keep the newest snapshot of each writer."""


def former_ids(pipeline_ids: Set[str], owners: Set[str]) -> Set[str]:
    """Return the ids in marks that runs no longer need: newer ids of the pipelines have marks.

    ``owners`` are the ids with which pipelines write the table now. While one of them has no mark,
    a former id may be that pipeline's.
    """
    return pipeline_ids - owners if owners <= pipeline_ids else set()


@attrs.frozen
class Tags:
    """The writers whose newest snapshots are kept, and those whose tags are dropped."""

    by_writer: Mapping[str, int]
    """The snapshots that are kept, by the writer's id."""
    dropped: Set[str]


def tags_of(snapshots: Iterable[JavaObject], owners: Set[str]) -> Tags:
    """Return the writers whose snapshots get tags; ``snapshots`` are current, newest first.

    Each of the table's pipelines gets a tag, and so do the last `OTHER_WRITERS` that committed.
    Flink gives each job a new id, and each query of Spark has its own. If all of them kept a
    snapshot, its data would never be freed.
    """
    newest: dict[str, int] = {}
    pipeline_ids = set()
    for snapshot in snapshots:
        summary = snapshot.summary()
        for key in WRITERS:
            writer = summary.get(key)
            if writer is not None:
                newest.setdefault(str(writer), int(snapshot.snapshotId()))
                pipeline_ids |= {str(writer)} if key == PIPELINE else set()
    others = [writer for writer in newest if writer not in pipeline_ids]
    dropped = {*former_ids(pipeline_ids, owners), *others[OTHER_WRITERS:]}
    return Tags({w: id_ for w, id_ in newest.items() if w not in dropped}, dropped)


def is_conflict(text: str) -> bool:
    """Return whether a commit failed because of another writer's commit, so that a retry helps."""
    return any(words in text for words in CONFLICTS)


def is_whole(location: str) -> bool:
    """Return whether a location means the same folder to every process."""
    return location.startswith("/") or ":" in location


class IcebergTable(Versioned):
    """A table in an Iceberg catalog of the session."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        origin: Origin,
        *,
        partition_by: Sequence[Partition] = (),
        sort_by: Sequence[Sort] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self.name = ".".join(f"`{part}`" for part in name.split("."))
        self._plain = name
        self._origin = origin
        self._partition_by = tuple(partition_by)
        self._sort_by = tuple(sort_by)
        self._chosen_properties = {**PROPERTIES, **(properties or {})}
        self._last: Mark | None = None
        """The last batch that this object has written."""

    def _is_there(self) -> bool:
        return self._spark.catalog.tableExists(self.name)

    def create(self, schema: StructType) -> None:
        namespace = self.name.rpartition(".")[0]
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        columns = ", ".join(map(sql_column, schema.fields))
        spec = ", ".join(map(str, self._partition_by))
        partitioned = f" PARTITIONED BY ({spec})" if spec else ""
        properties = listed_properties(self._chosen_properties)
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING iceberg{partitioned} "
            f"TBLPROPERTIES ({properties})"
        )
        if self._sort_by:
            order = ", ".join(map(str, self._sort_by))
            self._spark.sql(f"ALTER TABLE {self.name} WRITE ORDERED BY {order}")

    def evolve(self, changes: Difference) -> None:
        for place in changes.added:
            self._spark.sql(f"ALTER TABLE {self.name} ADD COLUMN {place.sql}")
        self._widen(changes)

    def check_partitions(self) -> None:
        """Do nothing: the table keeps its partition spec, which other tools may have changed."""

    def table_id(self) -> str:
        return str(self._table().uuid().toString())

    def columns(self) -> StructType:
        return self.read().schema

    def has_batch(self, mark: Mark, *, by_rows: bool) -> bool:
        batches = _batches(self._table(), mark.pipeline_id)
        # Later batches come first, so the look ends at the first one that is not later.
        if mark.batch_id == next((b for b in batches if b <= mark.batch_id), None):
            return True
        return by_rows and self._rows_are_proof(mark) and self._has_rows(mark)

    def _rows_are_proof(self, mark: Mark) -> bool:
        """Return whether rows with a batch's offsets can only be those of this batch.

        Rows of another pipeline over the same topics have the same offsets. If others write the
        table, marks are asked first: they are enough unless the batch's mark may have expired.
        """
        names = {pipeline_id: name for name, pipeline_id in self.owners().items()}
        if set(names) <= {mark.pipeline_id}:
            return True
        topics = {part.topic for part in mark.ranges.ranges}
        own = names.get(mark.pipeline_id, mark.pipeline)
        return is_missing(self._table(), mark) is None and not other_writers([self], own, topics)

    def _has_rows(self, mark: Mark) -> bool:
        """Return whether there is a row with one of a batch's offsets."""
        return not self.read().where(self._origin.condition(mark.ranges)).isEmpty()

    def last_batch(self, pipeline_id: str) -> int | None:
        return next(_batches(self._table(), pipeline_id), None)

    def rolled_back(self, pipeline_id: str) -> int | None:
        """Return the newest batch of a snapshot that is not part of the current state."""
        if has_newest(self._table(), pipeline_id):
            return None
        batch_id = F.col("summary")[BATCH].cast("bigint")
        own = self._metadata("snapshots").where(F.col("summary")[PIPELINE] == pipeline_id)
        newest: int | None = own.agg(F.max(batch_id)).collect()[0][0]
        last = self.last_batch(pipeline_id)
        return newest if newest is not None and (last is None or last < newest) else None

    def lacks(self, mark: Mark, *, by_rows: bool) -> bool:
        """Return whether a written batch is gone, judging by marks or, if these expired, rows.

        Here, rows of another pipeline count as well: that the mark expired shows no loss.
        """
        missing = is_missing(self._table(), mark)
        if missing is not None:
            return missing
        # Changes by key can remove all rows of a batch again.
        return by_rows and not self.keys() and not self._has_rows(mark)

    def history(self, pipeline_id: str, since: datetime.datetime) -> History:
        return read_history(self._table(), self._metadata("snapshots"), pipeline_id, since)

    def append(self, frame: DataFrame, mark: Mark) -> None:
        rows = self._in_own_types(frame)
        for attempt in range(1, TRIES + 1):
            writer = rows.writeTo(self.name).option("fanout-enabled", "true")
            for key, text in summary_of(mark).items():
                writer = writer.option(f"snapshot-property.{key}", text)
            snapshot_id = self._state_without(mark)
            if snapshot_id is not None:
                writer = writer.option("validate-from-snapshot-id", snapshot_id)
            try:
                # An overwrite of no rows is an append that fails if others add rows meanwhile.
                writer.option("isolation-level", "serializable").overwrite(F.lit(False))
            except (PySparkException, Py4JJavaError) as error:
                if attempt == TRIES or not is_conflict(str(error)):
                    raise
            else:
                break
        self._last = mark

    def _state_without(self, mark: Mark) -> int | None:
        """Return the current snapshot's id; raise Failure if another run has written the batch."""
        table = self._table()
        last = next(_batches(table, mark.pipeline_id), None)
        if last is not None and last >= mark.batch_id:
            raise Overtaken(
                f"another run has written batch {last} to {self._plain}, so this run has stopped"
            )
        if self._last is not None and is_missing(table, self._last):
            refuse_rollback(self._plain, self._last.batch_id)
        snapshot = table.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def merge(
        self,
        changes: DataFrame,
        keys: Sequence[str],
        mark: Mark | None,
        order: Sequence[str] = (),
    ) -> None:
        properties = {}
        if mark is not None:
            self._state_without(mark)
            properties = {f"{SNAPSHOT_PROPERTY}{key}": t for key, t in summary_of(mark).items()}
        merge_changes(self.name, self._changes_in_own_types(changes), keys, order, properties)
        self._last = mark or self._last

    def add(self, frame: DataFrame) -> None:
        self._in_own_types(frame).writeTo(self.name).option("fanout-enabled", "true").append()

    def read(self) -> DataFrame:
        return self._spark.table(self.name)

    def size(self) -> Size:
        """Return the size; with merge-on-read, files contain rows that other files delete."""
        row = (
            self._metadata("files")
            .where("content = 0")
            .agg(F.count(F.lit(1)), F.sum("file_size_in_bytes"))
            .collect()[0]
        )
        return Size(rows=self.read().count(), files=row[0], bytes=row[1] or 0)

    def protect_marks(self) -> None:
        """Tag the newest snapshot of each writer; Iceberg does not expire tagged snapshots.

        Former ids of pipelines and old other writers lose their tags, so that the data of their
        snapshots is freed. Each statement is a commit, which writes the metadata of all snapshots,
        so tags that are right are left alone.
        """
        table = self._table()
        tags = tags_of(current(table), set(owners_of(table.properties()).values()))
        refs = table.refs()
        tagged = {str(name): int(refs[name].snapshotId()) for name in refs}
        for writer in sorted(tags.dropped):
            if f"{TAG}{writer}" in tagged:
                self._spark.sql(f"ALTER TABLE {self.name} DROP TAG `{TAG}{writer}`")
        for writer, snapshot_id in tags.by_writer.items():
            if tagged.get(f"{TAG}{writer}") != snapshot_id:
                self._spark.sql(
                    f"ALTER TABLE {self.name} CREATE OR REPLACE TAG `{TAG}{writer}` "
                    f"AS OF VERSION {snapshot_id}"
                )

    def compact(self, upkeep: Upkeep) -> str:
        row = self._call(
            "rewrite_data_files",
            f"options => map('target-file-size-bytes', '{upkeep.target_file_bytes}')",
        )
        line = f"{row[0]} files became {row[1]}"
        if not self._has_position_deletes():
            return line
        deletes = self._call(
            "rewrite_position_delete_files", "options => map('rewrite-all', 'true')"
        )
        return f"{line}, {deletes[0]} delete files became {deletes[1]}"

    def _has_position_deletes(self) -> bool:
        """Return whether merge-on-read has left files that delete rows of data files by position.

        Compaction of the data keeps these files, and each read applies them. The deletion vectors
        of format version 3 are not included.
        """
        files = self._metadata("delete_files")
        is_position = (F.col("content") == POSITION) & (F.col("file_format") != "PUFFIN")
        return files.where(is_position).limit(1).count() > 0

    def expire(self, upkeep: Upkeep) -> list[str]:
        before = f"older_than => TIMESTAMP '{upkeep.expire_before:%Y-%m-%d %H:%M:%S}'"
        row = self._call("expire_snapshots", before, f"retain_last => {upkeep.keep_snapshots}")
        location = str(self._table().location())
        if not is_whole(location):
            # Iceberg compares full paths, and would take each file for an orphan.
            note = f"no search for orphan files: the table's location {location} is relative"
            return [f"{row[0]} data files of old snapshots removed", note]
        arguments = [f"older_than => TIMESTAMP '{upkeep.orphans_before:%Y-%m-%d %H:%M:%S}'"]
        if str(self._table().io().getClass().getName()) != HADOOP_IO:
            # Hadoop may have no file system for the location, such as s3:// of Iceberg's own S3
            # client.
            arguments.append("prefix_listing => true")
        removed = self._spark.sql(self._procedure("remove_orphan_files", *arguments)).count()
        return [f"{row[0]} data files of old snapshots removed", f"{removed} orphan files removed"]

    def _call(self, procedure: str, *arguments: str) -> Row:
        return self._spark.sql(self._procedure(procedure, *arguments)).collect()[0]

    def _procedure(self, procedure: str, *arguments: str) -> str:
        catalog, _, table = self.name.partition(".")
        listed = ", ".join((f"table => '{table}'", *arguments))
        return f"CALL {catalog}.system.{procedure}({listed})"

    def _metadata(self, name: str) -> DataFrame:
        return self._spark.table(f"{self.name}.{name}")

    def _properties(self) -> dict[str, str]:
        return texts_of(self._spark, self._table().properties())

    def _set_property(self, key: str, text: str) -> None:
        self._table().updateProperties().set(key, text).commit()

    def _marks(self) -> list[Mark]:
        snapshots = current(self._table())
        marks = [mark_of(texts_of(self._spark, each.summary())) for each in snapshots]
        return [mark for mark in reversed(marks) if mark is not None]

    def _table(self) -> JavaObject:
        """Return Iceberg's own table object, refreshed."""
        tables = java_class(self._spark, "org.apache.iceberg.spark.Spark3Util")
        table = tables.loadIcebergTable(self._spark._jsparkSession, self.name)
        table.refresh()
        return table


def ancestors(table: JavaObject) -> Iterator[JavaObject]:
    """Yield the current snapshot and its ancestors, newest first, up to the last expiry.

    Snapshots that were rolled back or are on another branch are not included.
    """
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent_id = snapshot.parentId()
        snapshot = None if parent_id is None else table.snapshot(parent_id)


def current(table: JavaObject) -> Iterator[JavaObject]:
    """Yield the snapshots that make up the current state, newest first.

    Older snapshots kept by a tag are also included if the snapshots in between have expired.
    """
    oldest = None
    for oldest in ancestors(table):
        yield oldest
    if oldest is None or oldest.parentId() is None:
        return
    limit = oldest.sequenceNumber()
    earlier = [each for each in table.snapshots() if each.sequenceNumber() < limit]
    yield from sorted(earlier, key=lambda each: each.sequenceNumber(), reverse=True)


def has_newest(table: JavaObject, pipeline_id: str) -> bool:
    """Return whether no snapshot after a pipeline's last batch is outside the current state.

    Each snapshot has the next sequence number of its table, so there is no gap between the last
    batch and the newest number. This takes a few calls, and a query of all snapshots takes two
    jobs of Spark. In format version 1, all numbers are 0, which shows nothing.
    """
    if not table.snapshots().iterator().hasNext():
        return True
    number = int(table.operations().current().lastSequenceNumber())
    for snapshot in ancestors(table):
        if number <= 0 or snapshot.sequenceNumber() != number:
            return False
        if _batch_of(snapshot, pipeline_id) is not None:
            return True
        number -= 1
    return False


def is_missing(table: JavaObject, mark: Mark) -> bool | None:
    """Return whether a batch is not in the current state; None if its mark may have expired."""
    oldest = None
    for oldest in ancestors(table):
        batch_id = _batch_of(oldest, mark.pipeline_id)
        if batch_id is not None:
            return batch_id < mark.batch_id
    if oldest is None or oldest.parentId() is None:
        return True
    return None


def _batch_of(snapshot: JavaObject, pipeline_id: str) -> int | None:
    """Return the batch of a pipeline's snapshot; None for any other snapshot."""
    summary = snapshot.summary()
    return int(summary.get(BATCH)) if summary.get(PIPELINE) == pipeline_id else None


def _batches(table: JavaObject, pipeline_id: str) -> Iterator[int]:
    """Yield a pipeline's batches in the current state, newest first."""
    for snapshot in current(table):
        batch_id = _batch_of(snapshot, pipeline_id)
        if batch_id is not None:
            yield batch_id
