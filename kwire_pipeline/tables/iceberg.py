"""An Iceberg table: a batch is one snapshot, whose summary has the batch's mark.

A batch is in the table if a snapshot has its mark, or, since snapshots expire, if a row has one
of its offsets: an append is atomic, so one row means all of them.
"""

from collections.abc import Mapping, Sequence

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kwire_pipeline.config.values import Partition, Sort
from kwire_pipeline.engine.offsets import Offsets, Ranges, later, offsets_of
from kwire_pipeline.engine.schema import Difference
from kwire_pipeline.engine.storage import jvm_of
from kwire_pipeline.tables.mark import BATCH, OFFSETS, OWNER, PIPELINE, Mark, Origin

PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Old metadata files go, so that a table of thousands of small batches stays small."""


class IcebergTable:
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
        self._properties = {**PROPERTIES, **(properties or {})}

    def exists(self) -> bool:
        return self._spark.catalog.tableExists(self._plain)

    def create(self, schema: StructType) -> None:
        namespace = self.name.rpartition(".")[0]
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in schema.fields)
        spec = ", ".join(map(str, self._partition_by))
        partitioned = f" PARTITIONED BY ({spec})" if spec else ""
        properties = ", ".join(f"'{key}' = '{text}'" for key, text in self._properties.items())
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING iceberg{partitioned} "
            f"TBLPROPERTIES ({properties})"
        )
        if self._sort_by:
            order = ", ".join(map(str, self._sort_by))
            self._spark.sql(f"ALTER TABLE {self.name} WRITE ORDERED BY {order}")

    def evolve(self, changes: Difference) -> None:
        for field in changes.added:
            self._spark.sql(
                f"ALTER TABLE {self.name} ADD COLUMN `{field.name}` {field.dataType.simpleString()}"
            )
        for field in changes.widened:
            self._spark.sql(
                f"ALTER TABLE {self.name} ALTER COLUMN `{field.name}` TYPE "
                f"{field.dataType.simpleString()}"
            )

    def table_id(self) -> str:
        return str(self._table().uuid().toString())

    def columns(self) -> StructType:
        return self.read().schema

    def owners(self) -> dict[str, str]:
        properties = self._table().properties()
        return {
            str(key).removeprefix(OWNER): str(properties[key])
            for key in properties
            if str(key).startswith(OWNER)
        }

    def add_owner(self, pipeline: str, pipeline_id: str) -> None:
        self._table().updateProperties().set(f"{OWNER}{pipeline}", pipeline_id).commit()

    def has_batch(self, mark: Mark) -> bool:
        for snapshot in self._table().snapshots():
            summary = snapshot.summary()
            if summary.get(PIPELINE) == mark.pipeline_id and summary.get(BATCH) == str(
                mark.batch_id
            ):
                return True
        return self.read().where(self._origin.condition(mark.ranges)).limit(1).count() > 0

    def last_batch(self, pipeline_id: str) -> int | None:
        summaries = [snapshot.summary() for snapshot in self._table().snapshots()]
        batches = [int(s.get(BATCH)) for s in summaries if s.get(PIPELINE) == pipeline_id]
        return max(batches, default=None)

    def append(self, frame: DataFrame, mark: Mark) -> None:
        writer = frame.writeTo(self.name).option("fanout-enabled", "true")
        for key, text in summary_of(mark).items():
            writer = writer.option(f"snapshot-property.{key}", text)
        writer.append()

    def positions(self) -> Offsets:
        origin = self._origin
        last = (
            self.read()
            .groupBy(f"`{origin.topic}`", f"`{origin.partition}`")
            .agg(F.max(f"`{origin.offset}`"))
            .collect()
        )
        positions = offsets_of((row[0], row[1], row[2] + 1) for row in last)
        for snapshot in self._table().snapshots():
            text = snapshot.summary().get(OFFSETS)
            if text is not None:
                positions = later(positions, Ranges.parse(text).ends)
        return positions

    def read(self) -> DataFrame:
        return self._spark.table(self.name)

    def delete(self, topics: Sequence[str]) -> None:
        listed = ", ".join(f"'{topic}'" for topic in topics)
        if listed:
            self._spark.sql(f"DELETE FROM {self.name} WHERE `{self._origin.topic}` IN ({listed})")

    def _table(self) -> JavaObject:
        """Return Iceberg's own table, as it is now."""
        table = jvm_of(self._spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self._spark._jsparkSession, self._plain
        )
        table.refresh()
        return table


def summary_of(mark: Mark) -> dict[str, str]:
    """Return the properties of the snapshot of a batch."""
    return {
        PIPELINE: mark.pipeline_id,
        BATCH: str(mark.batch_id),
        OFFSETS: mark.ranges.dump(),
    }
