"""A Delta table in a folder of the warehouse: a batch is one version of its log.

The version carries the batch as a Delta transaction (the pipeline's id and the batch number), so
Delta itself skips a repeated batch. The offsets are in the user metadata. The transaction also
fences runs: if two runs write a batch at the same time, Delta refuses the second. Delta keeps the
last transaction of each id in its checkpoints forever: neither vacuum nor the expiry of old
versions removes it. A partition by time is a generated column, which Delta also uses to skip files.
"""

import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from kwire_pipeline.config.values import Partition
from kwire_pipeline.engine.schema import Difference, sql_column
from kwire_pipeline.engine.storage import Folder, java_class
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.delta_history import PARTS, Version, current, is_enough
from kwire_pipeline.tables.folder_columns import FolderColumn, without_derived
from kwire_pipeline.tables.merge import merge_changes
from kwire_pipeline.tables.table import (
    Entry,
    History,
    Mark,
    Origin,
    Size,
    Upkeep,
    listed_properties,
    mark_of,
    refuse_partitions,
    refuse_rollback,
    session_settings,
    summary_of,
)
from kwire_pipeline.tables.versioned import Versioned

LOG: Final = "_delta_log"
SETTING: Final = "spark.databricks.delta."
WIDENING: Final = "delta.enableTypeWidening"


@attrs.frozen
class Metadata:
    """The part of a snapshot that is about the whole table."""

    table_id: str
    partitions: Sequence[str]
    properties: Mapping[str, str]

    @classmethod
    def of(cls, snapshot: JavaObject) -> "Metadata":
        """Return the metadata of a snapshot, which Delta has read before: no query is needed."""
        fields = json.loads(str(snapshot.metadata().json()))["metaData"]
        return cls(fields["id"], fields["partitionColumns"], fields["configuration"])


class DeltaTable(Versioned):
    """A Delta table, identified by its folder."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        origin: Origin,
        *,
        partition_by: Sequence[Partition] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._root = Folder(spark, url)
        self.url = self._root.full_url()
        self.name = f"delta.`{self.url}`"
        self._origin = origin
        self._partitions = tuple(map(FolderColumn.of, partition_by))
        self._chosen_properties = dict(properties or {})
        self._cached_history: tuple[tuple[str, int], bool, list[Version]] | None = None
        """The newest versions, after the table's id, its version, and whether these are all."""
        self._last: tuple[Mark, int] | None = None
        """The last batch that this object has written, and the table's version before it."""

    def _is_there(self) -> bool:
        return bool(self._root.names(LOG))

    def create(self, schema: StructType) -> None:
        if self._root.names():
            raise Refusal(
                f"{self.url} has files and is not a Delta table: choose another name, or move the "
                "files away"
            )
        names = {field.name.lower() for field in schema.fields}
        columns = [sql_column(field) for field in schema.fields]
        columns += [
            f"`{column.name}` {column.kind} GENERATED ALWAYS AS ({column.expression})"
            for column in self._partitions
            if column.name.lower() not in names
        ]
        partitions = ", ".join(f"`{column.name}`" for column in self._partitions)
        partitioned = f" PARTITIONED BY ({partitions})" if partitions else ""
        listed = listed_properties(self._chosen_properties)
        properties = f" TBLPROPERTIES ({listed})" if listed else ""
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)}) USING delta"
            f"{partitioned}{properties}"
        )

    def evolve(self, changes: Difference) -> None:
        if changes.added:
            added = ", ".join(place.sql for place in changes.added)
            self._spark.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({added})")
        if changes.widened:
            self._set_property(WIDENING, "true")
        self._widen(changes)

    def check_partitions(self) -> None:
        chosen = [column.name for column in self._partitions]
        refuse_partitions(self.name, self._metadata().partitions, chosen)

    def table_id(self) -> str:
        return self._metadata().table_id

    def columns(self) -> StructType:
        """Return the columns of rows, without those that exist only for partitions."""
        return without_derived(self.read().schema, self._partitions)

    def has_batch(self, mark: Mark, *, by_rows: bool) -> bool:
        """Return whether the batch is in the table; its transaction never expires.

        Raise Refusal if the batch was rolled back: its transaction is still there, so Delta would
        skip the batch if it were written again.
        """
        last = self.last_batch(mark.pipeline_id)
        if last is None or last < mark.batch_id:
            return False
        if mark.batch_id in self._undone(mark.pipeline_id):
            raise Refusal(
                f"{self.name} was restored to a version before batch {mark.batch_id}: undo that, "
                "or run with --adopt (continue after the offsets in the table)"
            )
        return True

    def last_batch(self, pipeline_id: str) -> int | None:
        """Return the last batch in the log, even if RESTORE has undone it.

        The checksum that Delta writes with a version lists the transactions, unless there are too
        many. Without the list, Delta reads the whole state of the table, with several queries.
        """
        snapshot = self._snapshot()
        checksum = snapshot.checksumOpt()
        listed = checksum.get().setTransactions() if checksum.isDefined() else checksum
        if listed.isDefined():
            transactions = listed.get()
            for transaction in map(transactions.apply, range(transactions.size())):
                if transaction.appId() == pipeline_id:
                    return int(transaction.version())
            return None
        version = snapshot.transactions().get(pipeline_id)
        return int(version.get()) if version.isDefined() else None

    def rolled_back(self, pipeline_id: str) -> int | None:
        return max(self._undone(pipeline_id), default=None)

    def _undone(self, pipeline_id: str) -> set[int]:
        """Return the batches whose versions RESTORE has undone; none if the newest are there."""
        if self.last_batch(pipeline_id) is None:
            return set()

        def own(versions: Iterable[Version]) -> list[int]:
            marks = _marks(versions)
            return [mark.batch_id for mark in marks if mark.pipeline_id == pipeline_id]

        history = self._history(lambda newest: is_enough(newest, own(newest)))
        return set(own(history)) - set(own(current(history)))

    def history(self, pipeline_id: str, since: datetime.datetime) -> History:
        def reaches(newest: Sequence[Version]) -> bool:
            is_early = newest[0].at.astimezone(datetime.UTC) < since
            return is_early and not any(version.is_restore for version in newest)

        versions = current(self._history(reaches))
        entries = (
            Entry(mark=mark, at=version.at.astimezone(datetime.UTC), rows=version.rows)
            for version in versions
            if (mark := _mark(version.metadata)) is not None and mark.pipeline_id == pipeline_id
        )
        is_cut = bool(versions) and versions[0].number > 0
        return History(
            tuple(entry for entry in entries if entry.at >= since),
            versions[0].at.astimezone(datetime.UTC) if is_cut else None,
        )

    def append(self, frame: DataFrame, mark: Mark) -> None:
        self._check_last(mark)
        self._appender(frame).option("txnAppId", mark.pipeline_id).option(
            "txnVersion", mark.batch_id
        ).option("userMetadata", json.dumps(summary_of(mark))).save(self.url)

    def merge(
        self,
        changes: DataFrame,
        keys: Sequence[str],
        mark: Mark | None,
        order: Sequence[str] = (),
    ) -> None:
        settings = {}
        if mark is not None:
            self._check_last(mark)
            settings = {
                f"{SETTING}write.txnAppId": mark.pipeline_id,
                f"{SETTING}write.txnVersion": str(mark.batch_id),
                f"{SETTING}commitInfo.userMetadata": json.dumps(summary_of(mark)),
            }
        merge_changes(self.name, self._changes_in_own_types(changes), keys, order, settings)

    def _check_last(self, mark: Mark) -> None:
        """Note the next batch; raise Refusal if a RESTORE has undone the last one."""
        version = int(self._snapshot().version())
        if self._last is not None:
            last, before = self._last
            # Another version than that of the last batch may be a RESTORE.
            if version > before + 1 and last.batch_id in self._undone(last.pipeline_id):
                refuse_rollback(self.name, last.batch_id)
        self._last = mark, version

    def add(self, frame: DataFrame) -> None:
        self._appender(frame).save(self.url)

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.url)

    def size(self) -> Size:
        detail = self._spark.sql(f"DESCRIBE DETAIL {self.name}").collect()[0]
        return Size(rows=self.read().count(), files=detail["numFiles"], bytes=detail["sizeInBytes"])

    def protect_marks(self) -> None:
        """Do nothing: the transactions of a Delta table do not expire."""

    def compact(self, upkeep: Upkeep) -> str:
        limits = {
            f"{SETTING}optimize.{name}FileSize": str(upkeep.target_file_bytes)
            for name in ("max", "min")
        }
        with session_settings(self._spark, limits):
            metrics = self._spark.sql(f"OPTIMIZE {self.name}").collect()[0]["metrics"]
        return f"{metrics['numFilesRemoved']} files became {metrics['numFilesAdded']}"

    def expire(self, upkeep: Upkeep) -> list[str]:
        """Remove files that no version newer than the earlier of the two limits needs."""
        oldest = min(upkeep.expire_before, upkeep.orphans_before)
        hours = max(0.0, (upkeep.now - oldest).total_seconds() / 3600)
        before = self._file_count()
        with session_settings(self._spark, {f"{SETTING}retentionDurationCheck.enabled": "false"}):
            self._spark.sql(f"VACUUM {self.name} RETAIN {hours:.3f} HOURS")
        return [f"{before - self._file_count()} files of old versions removed"]

    def _appender(self, frame: DataFrame) -> DataFrameWriter:
        return self._in_own_types(frame).write.format("delta").mode("append")

    def _file_count(self) -> int:
        """Return the number of files in the folder, without those of the log."""
        return sum(not path.startswith(LOG) for path, _ in self._root.files())

    def _set_property(self, key: str, text: str) -> None:
        listed = listed_properties({key: text})
        self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({listed})")

    def _metadata(self) -> Metadata:
        return Metadata.of(self._snapshot())

    def _properties(self) -> Mapping[str, str]:
        return self._metadata().properties

    def _marks(self) -> list[Mark]:
        return _marks(current(self._history()))

    def _history(
        self, suffices: Callable[[Sequence[Version]], bool] = lambda newest: False
    ) -> list[Version]:
        """Return the newest versions in the log, oldest first: as many as are enough, or all.

        Delta reads each of them with a query, so they are kept until the table has a newer version.
        """
        snapshot = self._snapshot()
        newest = Metadata.of(snapshot).table_id, int(snapshot.version())
        if self._cached_history is None or self._cached_history[0] != newest:
            self._cached_history = newest, False, []
        _, is_whole, versions = self._cached_history
        for limit in (*PARTS, None):
            if is_whole or (versions and suffices(versions)):
                break
            if limit is None or limit > len(versions):
                versions = self._read_history(limit)
                is_whole = limit is None or len(versions) < limit
                self._cached_history = newest, is_whole, versions
        return versions

    def _read_history(self, limit: int | None) -> list[Version]:
        newest = "" if limit is None else f" LIMIT {limit}"
        rows = self._spark.sql(f"DESCRIBE HISTORY {self.name}{newest}").collect()
        return [
            Version(
                row["version"],
                row["timestamp"],
                row["operation"],
                row["operationParameters"] or {},
                row["userMetadata"],
                _rows_of(row["operationMetrics"] or {}),
            )
            for row in sorted(rows, key=lambda row: row["version"])
        ]

    def _snapshot(self) -> JavaObject:
        """Return the newest state of Delta's log."""
        logs = java_class(self._spark, "org.apache.spark.sql.delta.DeltaLog")
        log = logs.forTable(self._spark._jsparkSession, self.url)
        none = java_class(self._spark, "scala.Option").empty()
        return log.update(False, none, none)


def _rows_of(metrics: Mapping[str, str]) -> int | None:
    text = metrics.get("numOutputRows")
    return None if text is None else int(text)


def _marks(versions: Iterable[Version]) -> list[Mark]:
    marks = (_mark(version.metadata) for version in versions)
    return [mark for mark in marks if mark is not None]


def _mark(text: str | None) -> Mark | None:
    """Return the mark in a version's user metadata; versions by other writers have none."""
    if text is None:
        return None
    try:
        summary = json.loads(text)
    except ValueError:
        return None
    return mark_of(summary) if isinstance(summary, dict) else None
