"""The proof that each committed offset is once in the table or in the dead letters.

The records that the topic still has are compared with the offsets in both tables, up to the
position of the checkpoint. Records that an expectation drops by intention count as such; the
batch that is half done, beyond the position, is left out.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.engine.offsets import Offsets

SPOT: Final = ("topic", "partition", "offset")


@attrs.frozen(kw_only=True)
class Proof:
    """The result of a comparison."""

    records: int
    """The records that the topic has in the range."""
    once: int
    dropped: int
    missing: int
    repeated: int
    """The offsets that occur more than once in the tables."""
    unknown: int
    """The offsets in the tables that the topic does not have as committed records."""
    compacted: int = 0
    """Those that a compacted topic does not have any more; they are no error."""
    examples: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.repeated or self.unknown)

    def words(self) -> list[str]:
        """Return the lines of a report."""
        counts = (
            f"{self.records:,} committed records in the topics: {self.once:,} once in table or "
            f"dead letters, {self.dropped:,} dropped by expectations, {self.missing:,} missing, "
            f"{self.repeated:,} repeated; {self.unknown:,} in the tables alone"
        )
        if self.compacted:
            counts += f", {self.compacted:,} compacted in the topic"
        return [counts, *(f"  {example}" for example in self.examples)]


def within(start: Offsets, end: Offsets, columns: Sequence[str] = SPOT) -> Column:
    """Return the condition that an offset lies in the range of its partition."""
    topic, partition, offset = (F.col(name) for name in columns)
    parts = [
        (topic == name)
        & (partition == number)
        & (offset >= start.get(name, {}).get(number, 0))
        & (offset < until)
        for name, partitions in end.items()
        for number, until in partitions.items()
        if until > start.get(name, {}).get(number, 0)
    ]
    return reduce(lambda first, second: first | second, parts, F.lit(False))


def compare(records: DataFrame, written: DataFrame, compacted: Sequence[str] = ()) -> Proof:
    """Compare the topic's records (with a column ``dropped``) with the offsets in the tables.

    ``compacted`` are topics from which records go that the tables have.
    """
    topic = records.select(*SPOT, "dropped", F.lit(1).alias("in_topic"))
    tables = written.groupBy(*SPOT).agg(F.count(F.lit(1)).alias("copies"))
    both = topic.join(tables, on=list(SPOT), how="full_outer").select(
        *SPOT,
        F.col("in_topic").isNotNull().alias("in_topic"),
        F.coalesce("copies", F.lit(0)).alias("copies"),
        F.coalesce("dropped", F.lit(False)).alias("dropped"),
    )
    in_topic, copies, dropped = F.col("in_topic"), F.col("copies"), F.col("dropped")
    kind = (
        F.when(~in_topic & ~F.col("topic").isin(list(compacted)), F.lit("unknown"))
        .when(copies > 1, F.lit("repeated"))
        .when(~in_topic, F.lit("compacted"))
        .when(copies == 1, F.lit("once"))
        .when(dropped, F.lit("dropped"))
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
        repeated=numbers.get("repeated", 0),
        unknown=numbers.get("unknown", 0),
        examples=tuple(
            f"{name}, for example: {counts[name][1]}"
            for name in ("missing", "repeated", "unknown")
            if name in counts
        ),
    )
