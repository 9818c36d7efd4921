"""The job: one topic into one table and its dead letters.  Wiring only.

Two queries read the topic, each with its own checkpoint and its own exactly-once sink; that is
twice the reading, and no protocol of our own between two tables.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from kwire_pipeline import settings as job_settings
from kwire_pipeline import sinks, source, transforms
from kwire_pipeline.session import open_session
from kwire_pipeline.settings import Settings


def start(spark: SparkSession, settings: Settings) -> list[StreamingQuery]:
    """Start both queries."""
    schema = transforms.schema_of(settings.schema)
    decoded = transforms.decode(source.stream(spark, settings), schema)
    names = [partition.name for partition in settings.partition_by]
    return [
        sinks.start(
            transforms.rows(decoded, schema, settings.partition_by),
            settings,
            name="table",
            table=settings.table,
            partition_by=names,
        ),
        sinks.start(
            transforms.dead_letters(decoded),
            settings,
            name="dead-letters",
            table=settings.dead_letters,
            partition_by=(),
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until what is available is done, or for ever at an interval; a failed query fails it."""
    settings = job_settings.read(arguments)
    spark = open_session(settings)
    try:
        queries = start(spark, settings)
        while any(query.isActive for query in queries):
            spark.streams.awaitAnyTermination()
            spark.streams.resetTerminated()
        for query in queries:
            query.awaitTermination()
    finally:
        spark.stop()
