"""A batch that is written does not fail for what comes after it."""

from pathlib import Path

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kwire_pipeline.config.values import Format
from kwire_pipeline.engine.batch import Tolerance, Writer, by_reason
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.reporting.figures import (
    MAX_REASONS,
    OTHER_REASONS,
    Tally,
    merged_reasons,
)
from kwire_pipeline.engine.shape_and_tables import RAW_DDL
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.parquet import ParquetTable
from kwire_pipeline.tables.table import Mark, Origin

ORIGIN = Origin("kafka_topic", "kafka_partition", "kafka_offset")


def writer_of(shape: Shape, destinations: Destinations) -> Writer:
    return Writer(
        shape=shape,
        destinations=destinations,
        tolerance=Tolerance(max_bad_share=1.0, min_bad_records=1),
        by_rows=True,
        mark=lambda batch_id: Mark("1", batch_id, Ranges.between({}, {"t": {0: 1}})),
        lag=lambda mark: 0,
        check_lease=lambda: None,
        clock=lambda: 0.0,
    )


@pytest.mark.parametrize("error", [Failure("no broker answers"), Refusal("no such topic")])
def test_batch_is_written_though_its_lag_is_not_known(
    spark: SparkSession, tmp_path: Path, error: Exception
) -> None:
    def lag(mark: Mark) -> int:
        raise error

    shape = Shape(format=Format.STRING)
    row = (None, bytearray(b"text"), "t", 0, 0, None, 0, None)
    raw = spark.createDataFrame([row], RAW_DDL)
    table = ParquetTable(spark, str(tmp_path / "orders"), ORIGIN, partition_by=())
    table.create(frames.rows(frames.classify(raw, shape), shape).schema)
    destinations = Destinations(table=table, dead_letters=None)
    writer = attrs.evolve(writer_of(shape, destinations), lag=lag)
    figures = writer.write(raw, 0, may_be_repeated=False).figures
    assert (figures.rows, figures.lag) == (1, None)
    assert table.read().count() == 1


@pytest.mark.parametrize(
    ("dead_letters", "records", "is_exceeded"),
    [
        (1, 1, False),
        (9, 9, False),
        (10, 10, True),
        (10, 200, False),
        (11, 200, True),
        (0, 0, False),
    ],
)
def test_share_counts_from_a_number_of_bad_records_on(
    dead_letters: int, records: int, is_exceeded: bool
) -> None:
    """One bad record in a batch of one says nothing about a schema."""
    tolerance = Tolerance(max_bad_share=0.05, min_bad_records=10)
    assert tolerance.is_exceeded(dead_letters, records) is is_exceeded


@pytest.mark.parametrize(("dead_letters", "is_exceeded"), [(0, False), (1, True)])
def test_share_of_0_accepts_no_bad_record(dead_letters: int, is_exceeded: bool) -> None:
    tolerance = Tolerance(max_bad_share=0, min_bad_records=10)
    assert tolerance.is_exceeded(dead_letters, 1000) is is_exceeded


def test_rows_of_a_transform_are_counted_as_it_makes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One of three records becomes no row, and one becomes two."""
    shape = Shape(format=Format.STRING)
    texts = [b"none", b"one", b"two two"]
    raw = spark.createDataFrame(
        [(None, bytearray(text), "t", 0, at, None, 0, None) for at, text in enumerate(texts)],
        RAW_DDL,
    )

    def words(frame: DataFrame) -> DataFrame:
        split = F.explode(F.split("value", " "))
        return frame.where("value != 'none'").withColumn("value", split)

    table = ParquetTable(spark, str(tmp_path / "words"), ORIGIN, partition_by=())
    table.create(frames.rows(frames.classify(raw, shape), shape).schema)
    writer = writer_of(shape, Destinations(table=table, dead_letters=None, transform=words))
    figures = writer.write(raw, 0, may_be_repeated=False).figures
    assert (figures.rows, figures.omitted) == (3, 1)
    assert table.read().count() == 3
    tally = Tally()
    tally.add(figures, {})
    assert "3 rows, 0 dead letters, 0 dropped, 1 left out by the transform" in tally.words()[0]


def test_reasons_of_a_run_are_bounded() -> None:
    """Damaged records may have any schema id, and a reason names it."""
    reasons: dict[str, int] = {"not JSON": 3}
    for number in range(4 * MAX_REASONS):
        reasons = merged_reasons(reasons, {f"the registry has no schema {number}": 1})
    assert len(reasons) == MAX_REASONS + 1
    assert reasons["not JSON"] == 3
    assert sum(reasons.values()) == 3 + 4 * MAX_REASONS


def test_reasons_of_a_batch_are_bounded(spark: SparkSession) -> None:
    numbers = F.when(F.col("id") < 5, F.lit("not JSON")).otherwise(F.col("id").cast("string"))
    letters = spark.range(200).select(numbers.alias("reason"))
    for total in (200, None):
        reasons = by_reason(letters, total)
        assert len(reasons) == MAX_REASONS + 1
        assert (reasons["not JSON"], reasons[OTHER_REASONS]) == (5, 200 - 5 - (MAX_REASONS - 1))
    assert by_reason(letters.where("id < 7")) == {"not JSON": 5, "5": 1, "6": 1}
