"""Sinks that write a stream to a table, each record exactly once.

Parquet: Spark's file sink, whose metadata log in the folder lists the valid files. Iceberg: its
streaming sink, whose snapshots carry the query and the epoch, so that a repeated epoch is not
committed again. Both depend on the checkpoint, which has the offsets of each epoch.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kwire_pipeline.settings import AVAILABLE_NOW, Settings


def start(
    frame: DataFrame, settings: Settings, *, name: str, table: str, partition_by: Sequence[str]
) -> StreamingQuery:
    """Start to append ``frame`` to ``table``; the query has a checkpoint folder of its own."""
    writer = with_trigger(frame.writeStream.queryName(name), settings.trigger)
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


def with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger)


def create_iceberg(frame: DataFrame, table: str, partition_by: Sequence[str]) -> None:
    """Create the table, with the frame's columns, if it does not exist."""
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
