"""Each record of a topic is in the tables once, or the proof says which is not."""

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kwire_pipeline.engine.proof import (
    compare,
    made_of,
    per_record,
    with_timestamps_of,
    within,
)


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


def test_rows_of_a_former_topic_neither_repeat_nor_hide_a_record(spark: SparkSession) -> None:
    """Both topics have the offsets 0 to 2; the row of the new one's offset 2 is absent."""
    records = frame(spark, [0, 1, 2]).withColumn("timestamp", F.timestamp_seconds(F.lit(9)))
    new = records.where("offset < 2").drop("dropped")
    old = records.drop("dropped").withColumn("timestamp", F.timestamp_seconds(F.lit(5)))
    written, former = with_timestamps_of(new.unionAll(old), records)
    proof = attrs.evolve(compare(records.drop("timestamp"), written), former=former)
    assert (proof.once, proof.missing, proof.repeated, proof.former) == (2, 1, 0, 3)
    assert "former topic of the same name" in proof.words()[1]
    assert "former topic" not in "".join(attrs.evolve(proof, former=0).words())


def test_rows_that_a_transform_makes_are_counted_by_record(spark: SparkSession) -> None:
    """It makes two rows of 0, 1 and 2, one of 3, and none of 5; compaction has removed 9."""
    row_counts = made_of(frame(spark, [0, 0, 1, 1, 2, 2, 3]))
    rows = frame(spark, [0, 0, 1, 2, 2, 2, 3, 5, 5]).unionAll(frame(spark, [9, 9], "c"))
    rows = rows.withColumn("timestamp", F.timestamp_seconds(F.lit(9)))
    written = per_record(rows, row_counts, ["c"])
    counts = {
        (r.topic, r.offset): r["count"]
        for r in written.groupBy("topic", "offset").count().collect()
    }
    assert counts == {("t", 0): 1, ("t", 2): 2, ("t", 3): 1, ("t", 5): 2, ("c", 9): 1}


def test_topic_may_have_a_thousand_partitions(spark: SparkSession) -> None:
    """Spark goes through a condition by recursion."""
    end = {"t": dict.fromkeys(range(1000), 5)}
    rows = frame(spark, [4, 5]).withColumn("row", F.struct("topic", "partition", "offset"))
    assert [row.offset for row in rows.where(within({}, end)).collect()] == [4]
    names = [f"row.{name}" for name in ("topic", "partition", "offset")]
    assert [row.offset for row in rows.where(within({}, end, names)).collect()] == [4]
    assert rows.where(within(end, end)).count() == 0
