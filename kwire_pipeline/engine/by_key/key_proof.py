"""The proof of a table that is changed by key: each key has its last change.

Such a table does not keep earlier offsets, so only this can be proved: the records that the topics
still have are classified as a run would classify them today, and the last change of each key is
compared, by offset, with the row of that key. A key whose last change is a deletion has no row. A
key with records in several partitions may have the last change of any of them, unless the table has
a sequence, which orders all of them. Rows of records that the topics no longer have are counted but
not judged.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.engine.proof import SPOT, Proof, within
from kwire_pipeline.records.frames import DELETES

BAD: Final = ("missing", "stale", "repeated", "unknown")


@attrs.frozen(kw_only=True)
class KeyProof:
    """The result of a comparison by key."""

    records: int
    current: int
    """Keys whose row has their last change."""
    deleted: int
    """Keys that correctly have no row, because their last change is a deletion."""
    missing: int
    """Keys that lack the row that their last change wrote."""
    stale: int
    """Keys whose row has an earlier change."""
    repeated: int
    """Keys with several rows."""
    unknown: int
    """Rows whose offset is not a change of their key in the topics."""
    compacted: int
    """Rows like those in ``unknown``, but from compacted topics; they do not count as errors."""
    older: int
    """Rows whose records are older than all that the topics still have."""
    letters: Proof
    examples: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        is_bad = self.missing or self.stale or self.repeated or self.unknown
        return not is_bad and self.letters.is_clean

    @property
    def problem(self) -> str:
        """The kinds of errors, with an example of each, in one line; empty if there are none."""
        letters = [f"dead letters {example}" for example in self.letters.examples]
        return "; ".join((*self.examples, *letters))

    def words(self) -> list[str]:
        """Return the lines of a report."""
        line = (
            f"{self.records:,} committed records in the topics: {self.current:,} rows have the "
            f"last change of their key, {self.deleted:,} keys are deleted, {self.missing:,} "
            f"missing, {self.stale:,} stale, {self.repeated:,} repeated; {self.unknown:,} in the "
            "table alone"
        )
        if self.compacted:
            line += f", {self.compacted:,} compacted in the topic"
        if self.older:
            line += f"; {self.older:,} rows are older than the topics' records and not compared"
        letters = self.letters
        return [
            line,
            *(f"  {example}" for example in self.examples),
            f"dead letters: {letters.once:,} once, {letters.missing:,} missing, "
            f"{letters.repeated:,} repeated; {letters.unknown:,} in the table alone",
            *letters.copy_words(),
            *(f"  {example}" for example in letters.examples),
            "This proves keys and their last offsets: a table that is changed by key keeps no "
            "earlier ones.",
        ]


@attrs.frozen(kw_only=True)
class Sides:
    """The two sides of a comparison, as frames."""

    changes: DataFrame
    """The changes in the topics, by key and origin, with `DELETES`."""
    rows: DataFrame
    keys: Sequence[str]
    origin: Sequence[str]
    """The topic, partition and offset columns of both frames."""
    sequence: Sequence[str] = ()
    """The columns that order the changes of a key; without any, the offsets of a partition do."""
    start: Offsets
    end: Offsets
    compacted: Sequence[str]


def compare_keys(sides: Sides, record_count: int, letters: Proof) -> KeyProof:
    """Compare the last changes with the rows."""
    first = F.min("spot")
    kinds = (
        _kinds(sides)
        .groupBy("kind")
        .agg(F.count(F.lit(1)).alias("count"), first.alias("first"))
        .collect()
    )
    numbers = {row["kind"]: row["count"] for row in kinds}
    examples = {row["kind"]: row["first"] for row in kinds}
    return KeyProof(
        records=record_count,
        **{
            name: numbers.get(name, 0)
            for name in ("current", "deleted", "compacted", "older", *BAD)
        },
        letters=letters,
        examples=tuple(f"{n}, for example: {examples[n]}" for n in BAD if n in numbers),
    )


def _kinds(sides: Sides) -> DataFrame:
    """Return a row for each key, with its kind and the place of a record."""
    keys = [F.col(f"`{key}`") for key in sides.keys]
    names = [f"key_{number}" for number in range(len(keys))]
    own = [key.alias(name) for key, name in zip(keys, names, strict=True)]
    origin = [
        F.col(f"`{column}`").alias(name) for column, name in zip(sides.origin, SPOT, strict=True)
    ]
    spot = F.struct(*SPOT)
    order = _order(sides).alias("order")
    within_key = [] if sides.sequence else ["topic", "partition"]
    last = (
        sides.changes.select(*own, *origin, order, DELETES)
        .groupBy(*names, *within_key)
        .agg(
            F.max_by(DELETES, "order").alias(DELETES),
            F.max_by(spot, "order").alias("spot"),
            F.max("order").alias("order"),
        )
    )
    changes = last.groupBy(*names).agg(
        F.collect_list(F.when(~F.col(DELETES), F.col("spot"))).alias("spots"),
        F.bool_or(DELETES).alias("may_be_absent"),
        F.min("spot").alias("change"),
        F.max("order").alias("last"),
    )
    rows = (
        sides.rows.select(*own, *origin, order)
        .groupBy(*names)
        .agg(
            F.count(F.lit(1)).alias("copies"), F.min(spot).alias("row"), F.min("order").alias("own")
        )
    )
    same = reduce(
        lambda first, second: first & second,
        [F.col(f"changes.{name}").eqNullSafe(F.col(f"rows.{name}")) for name in names],
    )
    both = changes.alias("changes").join(rows.alias("rows"), same, "full_outer")
    place = F.coalesce("row", "change")
    sample = F.format_string(
        "partition %d of %s, offset %d", place["partition"], place["topic"], place["offset"]
    )
    return both.select(_kind(sides).alias("kind"), sample.alias("spot"))


def _order(sides: Sides) -> Column:
    """Return the order of a change or row as one value, the same type on both sides."""
    topic, partition, offset = sides.origin
    types = {field.name.lower(): field.dataType for field in sides.rows.schema.fields}
    names = [*sides.sequence, partition, offset, topic]
    columns = [F.col(f"`{name}`").cast(types[name.lower()]) for name in names]
    return F.struct(*[column.alias(f"o_{n}") for n, column in enumerate(columns)])


def _kind(sides: Sides) -> Column:
    row = [f"row.{name}" for name in SPOT]
    has_change, has_row = F.col("change").isNotNull(), F.col("row").isNotNull()
    # Only with a sequence can a row be newer than every change that the topics still have.
    is_newer = F.lit(bool(sides.sequence)) & (F.col("own") > F.col("last"))
    is_in_range = F.coalesce(within(sides.start, sides.end, row), F.lit(False))
    return (
        F.when(F.col("copies") > 1, F.lit("repeated"))
        .when(has_change & has_row & F.array_contains("spots", F.col("row")), F.lit("current"))
        .when(has_change & has_row & ~is_newer, F.lit("stale"))
        .when(has_change & ~has_row & F.col("may_be_absent"), F.lit("deleted"))
        .when(has_change & ~has_row, F.lit("missing"))
        .when(~is_in_range, F.lit("older"))
        .when(F.col("row.topic").isin(list(sides.compacted)), F.lit("compacted"))
        .otherwise(F.lit("unknown"))
    )
