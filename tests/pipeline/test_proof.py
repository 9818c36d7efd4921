"""Each record of a topic is in the tables once, or the proof says which is not."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kwire_pipeline.engine.proof import compare


def frame(spark: SparkSession, offsets: list[int], topic: str = "t") -> DataFrame:
    data = [(topic, 0, offset, False) for offset in offsets]
    return spark.createDataFrame(
        data, "topic STRING, partition INT, offset BIGINT, dropped BOOLEAN"
    )


def test_missing_repeated_and_unknown_offsets_are_counted(spark: SparkSession) -> None:
    proof = compare(frame(spark, [0, 1, 2, 3]), frame(spark, [0, 1, 1, 2, 7]).drop("dropped"))
    assert (proof.records, proof.once, proof.missing) == (4, 2, 1)
    assert (proof.repeated, proof.unknown, proof.compacted) == (1, 1, 0)
    assert not proof.is_clean


def test_records_that_compaction_removed_are_no_failure(spark: SparkSession) -> None:
    tables = frame(spark, [0, 1, 2, 3]).drop("dropped")
    assert not compare(frame(spark, [2, 3]), tables).is_clean
    proof = compare(frame(spark, [2, 3]), tables, ["t"])
    assert proof.is_clean
    assert (proof.records, proof.once, proof.compacted) == (2, 2, 2)
    assert "2 compacted in the topic" in proof.words()[0]
    again = tables.unionAll(frame(spark, [0]).drop("dropped"))
    assert compare(frame(spark, [2, 3]), again, ["t"]).repeated == 1


def test_letters_that_retention_removed_are_no_failure(spark: SparkSession) -> None:
    """A record that fits is missing though letters expire."""
    records = frame(spark, [0, 1, 2, 3]).withColumn("expired", F.col("offset") < 2)
    proof = compare(records, frame(spark, [1, 2]).drop("dropped"))
    assert (proof.once, proof.expired, proof.missing, proof.is_clean) == (2, 1, 1, False)
    assert "1 dead letters removed by their topic's retention" in proof.words()[0]
