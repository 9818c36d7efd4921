"""The changes of one batch by key: only the last of several changes of a key is applied.

The last change is the one with the highest partition and offset. Producers put all records of a key
into one partition, so this is the order in which they were produced. For records of a key in two
partitions, no reader can know the order; in that case the order used here is at least the same in
every rerun. If the table has a sequence, its columns are compared first.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, MapType, StructType, VariantType

from kwire_pipeline.engine.by_key.sequence import names_of_deletions
from kwire_pipeline.errors import Permanent
from kwire_pipeline.records import frames, unavailable
from kwire_pipeline.records.changes import Changes
from kwire_pipeline.records.frames import DELETES, Shape

NO_ORDER: Final = (ArrayType, BinaryType, BooleanType, MapType, StructType, VariantType)
"""The types whose values have no order, so that they cannot tell which change is later."""
RANK = f"{frames.OWN}rank"


def all_changes(
    batch: DataFrame, shape: Shape, transform: Callable[[DataFrame], DataFrame] | None
) -> DataFrame:
    """Return a classified batch's rows and deletions; a deletion has only key and origin."""
    changes = frames.changes_of(batch, shape)
    if transform is None:
        return changes
    # A transform gets rows as they are in the table.
    rows = transform(changes.where(~F.col(DELETES)).drop(DELETES, *shape.reads))
    rows = rows.withColumn(DELETES, F.lit(False))
    if not shape.changes.has_deletions:
        return rows
    names = [*names_of_deletions(shape), DELETES]
    deletions = changes.where(F.col(DELETES)).select(*[F.col(f"`{name}`") for name in names])
    return rows.unionByName(deletions, allowMissingColumns=True)


def last_changes(changes: DataFrame, shape: Shape) -> DataFrame:
    """Return the last change of each key.

    Placeholders for unchanged values are replaced by the last value of an earlier change.
    """
    by_key = Window.partitionBy(*[F.col(f"`{key}`") for key in shape.changes.keys])
    latest_first = by_key.orderBy(*[F.col(f"`{name}`").desc() for name in shape.order])
    ranked = changes.withColumn(RANK, F.row_number().over(latest_first))
    text = shape.changes.unavailable
    if text is not None:
        fixed = {name.lower() for name in (*shape.changes.keys, *shape.origin)}
        fields = [field for field in changes.schema.fields if field.name.lower() not in fixed]
        ranked = ranked.withColumns(unavailable.resolve(fields, text, latest_first))
    return ranked.where(F.col(RANK) == 1).drop(RANK, *shape.reads)


def check_no_null(changes: DataFrame, rules: Changes) -> None:
    """Raise Permanent if a transform has made a key null: such rows would replace each other.

    The same applies to a column of the sequence, which must order the change.
    """
    names = (*rules.keys, *rules.sequence)
    nulls = [F.count_if(F.col(f"`{name}`").isNull()) for name in names]
    counts = changes.agg(*nulls).collect()[0]
    for name, count in zip(names, counts, strict=True):
        if count:
            key = "keys" if name in rules.keys else "sequence_by"
            raise Permanent(
                f"table.{key}: the transform makes rows whose {name} is null: leave them out "
                "there, or give them a value"
            )


def check_keys(rows: DataFrame, shape: Shape, before: StructType | None = None) -> None:
    """Raise Permanent if the rows or the deletions lack a column of the key, or have other types.

    The same applies to the columns of the sequence. ``before`` has the columns before a transform,
    if there is one.
    """
    names = {name.lower(): name for name in rows.columns}
    own = {name.lower() for name in shape.names}
    former = {} if before is None else {f.name.lower(): f.dataType for f in before.fields}
    chosen = {"keys": shape.changes.keys, "sequence_by": shape.changes.sequence}
    for option, name in ((option, name) for option, each in chosen.items() for name in each):
        if name.lower() not in names:
            raise Permanent(
                f"table.{option}: the transform's rows lack the column {name}: return it as well"
            )
        if shape.changes.sequence and name not in rows.columns:
            raise Permanent(
                f"table.{option}: the column {name} is called {names[name.lower()]}: with "
                "sequence_by, write it in the same case"
            )
        if shape.changes.has_deletions and name.lower() not in own:
            raise Permanent(
                f"table.{option}: {name} is made by the transform, which deletions do not pass: "
                "make it with `columns`"
            )
        own_type = rows.schema[names[name.lower()]].dataType
        if shape.changes.has_deletions and former.get(name.lower(), own_type) != own_type:
            raise Permanent(
                f"table.{option}: the transform changes the type of {name}, and deletions do not "
                "pass it: change the type with `columns`"
            )
    for name in shape.changes.sequence:
        if isinstance(rows.schema[name].dataType, NO_ORDER):
            kind = rows.schema[name].dataType.simpleString()
            raise Permanent(f"table.sequence_by: {name} is {kind}, which has no order")
