"""A batch that is written does not fail for what comes after it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.config.values import Format
from kwire_pipeline.engine.batch import Destinations, Writer
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.parts import RAW_DDL
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.parquet import ParquetTable
from kwire_pipeline.tables.table import Mark, Origin


@pytest.mark.parametrize("error", [Failure("no broker answers"), Refusal("no such topic")])
def test_batch_is_written_though_its_lag_is_not_known(
    spark: SparkSession, tmp_path: Path, error: Exception
) -> None:
    def lag(mark: Mark) -> int:
        raise error

    shape = Shape(format=Format.STRING)
    row = (None, bytearray(b"text"), "t", 0, 0, None, 0, None)
    raw = spark.createDataFrame([row], RAW_DDL)
    origin = Origin("kafka_topic", "kafka_partition", "kafka_offset")
    table = ParquetTable(spark, str(tmp_path / "orders"), origin, partition_by=())
    table.create(frames.rows(frames.classify(raw, shape), shape).schema)
    writer = Writer(
        shape=shape,
        destinations=Destinations(table=table, dead_letters=None),
        max_bad_share=1.0,
        by_rows=True,
        mark=lambda batch_id: Mark("1", batch_id, Ranges.between({}, {"t": {0: 1}})),
        lag=lag,
        check_lease=lambda: None,
        clock=lambda: 0.0,
    )
    figures = writer.write(raw, 0, may_be_repeated=False).figures
    assert (figures.rows, figures.lag) == (1, None)
    assert table.read().count() == 1
