"""The proof that each committed offset is in the table or in the dead letters exactly once.

The records that the topic still has are compared with the offsets in both tables, up to the
checkpoint's position. Records that an expectation intentionally drops are counted separately; a
half-done batch, which lies beyond the position, is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.engine.offsets import Offsets, Ranges

SPOT: Final = ("topic", "partition", "offset")


@attrs.frozen(kw_only=True)
class Proof:
    """The result of a comparison."""

    records: int
    """The number of records that the topic has in the range."""
    once: int
    dropped: int
    missing: int
    repeated: int
    """Offsets that occur in the tables more often than they should."""
    unknown: int
    """Offsets in the tables for which the topic has no committed record."""
    compacted: int = 0
    """Offsets that compaction removed from the topic; they do not count as errors."""
    expired: int = 0
    """Dead letters that retention has removed from their topic."""
    letter_copies: int = 0
    """Records that are in the dead-letter topic more than once; they do not count as errors."""
    former: int = 0
    """Rows and dead letters assumed to belong to a former topic of the same name."""
    other_writers: Mapping[str, str] = attrs.field(factory=dict)
    """The topics that another pipeline writes to the same tables, each with its name."""
    examples: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.repeated or self.unknown)

    @property
    def problem(self) -> str:
        """The kinds of errors, with an example of each, in one line; empty if there are none."""
        return "; ".join(self.examples)

    def words(self) -> list[str]:
        """Return the lines of a report."""
        counts = (
            f"{self.records:,} committed records in the topics: {self.once:,} once in table or "
            f"dead letters, {self.dropped:,} dropped on purpose, {self.missing:,} missing, "
            f"{self.repeated:,} repeated; {self.unknown:,} in the tables alone"
        )
        if self.compacted:
            counts += f", {self.compacted:,} compacted in the topic"
        if self.expired:
            counts += f", {self.expired:,} dead letters removed by their topic's retention"
        examples = [f"  {example}" for example in self.examples]
        notes = [*self.former_words(), *self.copy_words(), *self.other_words()]
        return [counts, *notes, *examples]

    def former_words(self) -> list[str]:
        """Return the line about rows of a former topic, if there are any."""
        if not self.former:
            return []
        return [
            f"  {self.former:,} rows or dead letters are of no record with their offset and "
            "timestamp: the tables have those of a former topic of the same name, so these are not "
            "judged"
        ]

    def copy_words(self) -> list[str]:
        """Return the line about dead letters that a topic has more than once, if there are any."""
        if not self.letter_copies:
            return []
        return [
            f"  {self.letter_copies:,} dead letters are in their topic once more, since a task of "
            "Spark was repeated; kwire.topic, kwire.partition and kwire.offset name the record"
        ]

    def other_words(self) -> list[str]:
        """Return the lines about pipelines whose rows are counted together with this one's."""
        return [
            f"  pipeline {other} writes topic {topic} to the same tables: its rows count as well"
            for topic, other in sorted(self.other_writers.items())
        ]


def within(start: Offsets, end: Offsets, columns: Sequence[str] = SPOT) -> Column:
    """Return the condition that an offset lies in the range of its partition."""
    topic, partition, offset = (".".join(f"`{p}`" for p in name.split(".")) for name in columns)
    parts = [
        f"({topic} = '{part.topic}' AND {partition} = {part.partition} AND "
        f"{offset} >= {part.start} AND {offset} < {part.end})"
        for part in Ranges.between(start, end).ranges
    ]
    # Spark's parser makes a balanced tree of the parts. A tree of columns would be as deep as there
    # are partitions, and some hundred overflow the stack of the JVM.
    return F.expr(" OR ".join(parts) or "false")


def with_timestamps_of(written: DataFrame, records: DataFrame) -> tuple[DataFrame, int]:
    """Return the table offsets that match ``records`` by timestamp, and the number of others.

    A recreated topic repeats the offsets of the former one, but hardly ever its timestamps.
    """
    columns = [*SPOT, "timestamp"]
    own = written.join(records.select(*columns), columns, "left_semi")
    return own, written.count() - own.count()


def made_of(rows: DataFrame) -> DataFrame:
    """Return a column ``made``: the number of rows that a transform makes of each record.

    ``rows`` has the topic, partition and offset of each row that the transform made. Records
    without rows are not in the result.
    """
    return rows.groupBy(*SPOT).agg(F.count(F.lit(1)).alias("made"))


def per_record(rows: DataFrame, row_counts: DataFrame, compacted: Sequence[str] = ()) -> DataFrame:
    """Return one row for each record whose rows a table has completely, and two if it has more.

    A record whose rows are incomplete gets no row. A record that is not in ``row_counts`` would
    become no row today, so each of its rows is returned, unless its topic is ``compacted`` and may
    have removed the record.
    """
    copies = rows.groupBy(*SPOT, "timestamp").agg(F.count(F.lit(1)).alias("copies"))
    number = (
        F.when(F.col("made").isNull() & F.col("topic").isin(list(compacted)), F.lit(1))
        .when(F.col("made").isNull(), F.col("copies"))
        .when(F.col("copies") == F.col("made"), F.lit(1))
        .when(F.col("copies") < F.col("made"), F.lit(0))
        .otherwise(F.lit(2))
    )
    times = F.array_repeat(F.lit(1), number.cast("int"))
    counted = copies.join(row_counts, list(SPOT), "left").withColumn("times", F.explode(times))
    return counted.select(*SPOT, "timestamp")


def compare(records: DataFrame, written: DataFrame, compacted: Sequence[str] = ()) -> Proof:
    """Compare the topic's records with the offsets in the tables.

    ``records`` has a column ``dropped``, and a column ``expired`` if dead letters may have passed
    their retention. ``compacted`` are topics that may lack records that the tables have.
    """
    if "expired" not in records.columns:
        records = records.withColumn("expired", F.lit(False))
    topic = records.select(*SPOT, "dropped", "expired", F.lit(1).alias("in_topic"))
    tables = written.groupBy(*SPOT).agg(F.count(F.lit(1)).alias("copies"))
    both = topic.join(tables, on=list(SPOT), how="full_outer").select(
        *SPOT,
        F.col("in_topic").isNotNull().alias("in_topic"),
        F.coalesce("copies", F.lit(0)).alias("copies"),
        F.coalesce("dropped", F.lit(False)).alias("dropped"),
        F.coalesce("expired", F.lit(False)).alias("expired"),
    )
    in_topic, copies, dropped = F.col("in_topic"), F.col("copies"), F.col("dropped")
    kind = (
        F.when(~in_topic & ~F.col("topic").isin(list(compacted)), F.lit("unknown"))
        .when(copies > 1, F.lit("repeated"))
        .when(~in_topic, F.lit("compacted"))
        .when(copies == 1, F.lit("once"))
        .when(dropped, F.lit("dropped"))
        .when(F.col("expired"), F.lit("expired"))
        .otherwise(F.lit("missing"))
    )
    sample = F.format_string("partition %d of %s, offset %d", "partition", "topic", "offset")
    rows = (
        both.groupBy(kind.alias("kind"))
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.count_if(in_topic).alias("records"),
            F.min(sample).alias("first"),
        )
        .collect()
    )
    counts = {row["kind"]: (row["count"], row["first"]) for row in rows}
    numbers = {name: count for name, (count, _) in counts.items()}
    return Proof(
        records=sum(row["records"] for row in rows),
        once=numbers.get("once", 0),
        dropped=numbers.get("dropped", 0),
        missing=numbers.get("missing", 0),
        compacted=numbers.get("compacted", 0),
        expired=numbers.get("expired", 0),
        repeated=numbers.get("repeated", 0),
        unknown=numbers.get("unknown", 0),
        examples=tuple(
            f"{name}, for example: {counts[name][1]}"
            for name in ("missing", "repeated", "unknown")
            if name in counts
        ),
    )
