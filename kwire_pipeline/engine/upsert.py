"""The changes of one batch by key: the last of several changes of a key counts.

The last change is the one with the highest partition and offset. Producers put all records of a key
into one partition, so this is the order in which they were produced. Records of a key in two
partitions have no order that a reader could know; in that case this order is at least the same in
every rerun.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from kwire_pipeline.errors import Permanent
from kwire_pipeline.records import frames, unavailable
from kwire_pipeline.records.frames import DELETES, Shape

RANK = f"{frames.OWN}rank"


def all_changes(
    batch: DataFrame, shape: Shape, transform: Callable[[DataFrame], DataFrame] | None
) -> DataFrame:
    """Return a classified batch's rows and deletions; a deletion has only key and origin."""
    changes = frames.changes_of(batch, shape)
    if transform is None:
        return changes
    rows = transform(changes.where(~F.col(DELETES)).drop(DELETES))
    rows = rows.withColumn(DELETES, F.lit(False))
    if not shape.changes.has_deletions:
        return rows
    names = [*shape.changes.keys, *shape.origin, DELETES]
    deletions = changes.where(F.col(DELETES)).select(*[F.col(f"`{name}`") for name in names])
    return rows.unionByName(deletions, allowMissingColumns=True)


def last_changes(changes: DataFrame, shape: Shape) -> DataFrame:
    """Return the last change of each key.

    In place of a placeholder for an unchanged value, it has the last value of an earlier change.
    """
    topic, partition, offset, _ = (F.col(f"`{name}`") for name in shape.origin)
    by_key = Window.partitionBy(*[F.col(f"`{key}`") for key in shape.changes.keys])
    latest_first = by_key.orderBy(partition.desc(), offset.desc(), topic.desc())
    ranked = changes.withColumn(RANK, F.row_number().over(latest_first))
    text = shape.changes.unavailable
    if text is not None:
        fixed = {name.lower() for name in (*shape.changes.keys, *shape.origin)}
        fields = [field for field in changes.schema.fields if field.name.lower() not in fixed]
        ranked = ranked.withColumns(unavailable.resolve(fields, text, latest_first))
    return ranked.where(F.col(RANK) == 1).drop(RANK)


def check_no_null(changes: DataFrame, keys: Sequence[str]) -> None:
    """Raise Permanent if a transform has made a key null: such rows would replace each other."""
    nulls = [F.count_if(F.col(f"`{key}`").isNull()) for key in keys]
    counts = changes.agg(*nulls).collect()[0]
    for key, count in zip(keys, counts, strict=True):
        if count:
            raise Permanent(
                f"table.keys: the transform makes rows whose {key} is null: leave them out there, "
                "or give them a key"
            )


def check_keys(rows: DataFrame, shape: Shape) -> None:
    """Raise Permanent if the rows lack a key, or if a deletion could not have it."""
    names = {name.lower() for name in rows.columns}
    own = {name.lower() for name in shape.names}
    for key in shape.changes.keys:
        if key.lower() not in names:
            raise Permanent(f"table.keys: the rows have no column {key}: keep it in the transform")
        if shape.changes.has_deletions and key.lower() not in own:
            raise Permanent(
                f"table.keys: {key} is made by the transform, which deletions do not pass: make it "
                "with `columns`"
            )
