"""Writing a stream to a table, each record once.

Parquet: Spark's file sink, whose metadata log in the folder says which files count.  Iceberg: its
streaming sink, whose snapshots carry the query and the epoch, so that a repeated epoch is not
committed again.  Both stand on the checkpoint, which names the offsets of each epoch.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kwire_pipeline.settings import AVAILABLE_NOW, Settings


def start(
    frame: DataFrame, settings: Settings, *, name: str, table: str, partition_by: Sequence[str]
) -> StreamingQuery:
    """Begin to append ``frame`` to ``table``; the query has its own part of the checkpoint."""
    writer = triggered(frame.writeStream.queryName(name), settings.trigger)
    writer = (
        writer.outputMode("append")
        .option("checkpointLocation", f"{settings.checkpoint.rstrip('/')}/{name}")
        .options(**settings.sink_options)
    )
    if settings.format == "parquet":
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        return writer.format("parquet").start(table)
    create_iceberg(frame, table, partition_by)
    return writer.format("iceberg").option("fanout-enabled", "true").toTable(table)


def triggered(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger)


def create_iceberg(frame: DataFrame, table: str, partition_by: Sequence[str]) -> None:
    """Make the table if it is not there, with the frame's columns."""
    spark = frame.sparkSession
    namespace = table.rpartition(".")[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    columns = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields
    )
    by = (
        f" PARTITIONED BY ({', '.join(f'`{name}`' for name in partition_by)})"
        if partition_by
        else ""
    )
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING iceberg{by}")
