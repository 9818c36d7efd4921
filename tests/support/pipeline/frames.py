"""Records as Spark's Kafka source gives them, and the plans of frames."""

import datetime

from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.engine.shape_and_tables import RAW_DDL

WHEN = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)


def topic(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    """Return records as Spark's Kafka source gives them."""
    data = [
        (
            bytearray(b"\x00\xff"),
            None if value is None else bytearray(value),
            "t", 0, offset, WHEN, 1,
            [("city", bytearray(b"Bern")), ("city", bytearray(b"Basel"))],
        )
        for offset, value in enumerate(values)
    ]  # fmt: skip
    return spark.createDataFrame(data, RAW_DDL)


def plan(frame: DataFrame) -> str:
    """Return the physical plan of a frame, with the plan of what is persisted below it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def key_frame(spark: SparkSession, keys: list[bytes | None]) -> DataFrame:
    """Return records of these keys as Spark's Kafka source gives them."""
    data = [
        (None if key is None else bytearray(key), bytearray(b"v"), "t", 0, offset, None, 0, None)
        for offset, key in enumerate(keys)
    ]
    return spark.createDataFrame(data, RAW_DDL)
