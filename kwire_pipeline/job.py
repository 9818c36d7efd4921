"""The job: one topic into one table and its dead letters. Wiring only.

Two queries read the topic, each with its own checkpoint and its own exactly-once sink. The topic
is read twice, but no protocol between the two tables is needed.
"""

import sys
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from kwire_pipeline import settings as job_settings
from kwire_pipeline import sinks, source, transforms
from kwire_pipeline.session import open_session
from kwire_pipeline.settings import Settings


def start(spark: SparkSession, settings: Settings) -> list[StreamingQuery]:
    """Start both queries and return them."""
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
    """Run until the available records are written, or for ever at an interval.

    Exit with a message if a query fails.
    """
    settings = job_settings.read(arguments)
    spark = open_session(settings)
    try:
        run(spark, settings)
    except PySparkException as error:
        sys.exit(f"kwire-pipeline: topic {settings.topic}: {first_line(error)}")
    finally:
        spark.stop()
    print(f"{settings.topic} is in {settings.table}, what did not fit in {settings.dead_letters}")


def run(spark: SparkSession, settings: Settings) -> None:
    """Run both queries to their end; raise the exception of a failed one."""
    queries = start(spark, settings)
    while any(query.isActive for query in queries):
        spark.streams.awaitAnyTermination()
        spark.streams.resetTerminated()
    for query in queries:
        query.awaitTermination()


def first_line(error: PySparkException) -> str:
    """Return an error's first line; Spark's plans and Java's stack are in the log already."""
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))
