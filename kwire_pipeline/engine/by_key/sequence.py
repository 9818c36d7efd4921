"""Changes by key that may arrive late: the newest change wins, whenever it arrives.

A row stores the sequence of its last change in its columns. A deleted key has no row, so a table of
deletions stores its key and sequence. A change that is older than the row or the deletion is not
applied.

A deletion is remembered for a time that starts when it is written to the table of deletions, not at
its record's time: when a topic is read for the first time, older changes of the key may still
follow. A change that is read a second time may come after its deletion was forgotten, so a check
rejects such changes.

Rules of this file: a deletion is stored before it is applied, so a run that ends in between never
leaves a deleted row without its deletion. Every step can be repeated, because the newest change
stays the newest.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from kwire_pipeline.errors import Refusal
from kwire_pipeline.records.frames import DELETES, Shape
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.merge import is_older
from kwire_pipeline.tables.table import REMEMBERED, Mark


def apply_changes(
    changes: DataFrame, shape: Shape, destinations: Destinations, mark: Mark | None
) -> None:
    """Apply changes, one for each key; ``mark`` is their batch's, if they belong to one."""
    keys, deletions = shape.changes.keys, destinations.deletions
    if not shape.changes.sequence:
        destinations.table.merge(changes, keys, mark)
        return
    if deletions is not None:
        deleted = changes.where(F.col(DELETES))
        if not deleted.isEmpty():
            names = [F.col(f"`{name}`") for name in names_of_deletions(shape)]
            now = F.current_timestamp().alias(REMEMBERED)
            remains = deleted.select(*names, now, F.lit(False).alias(DELETES))
            deletions.merge(remains, keys, None, shape.order)
        changes = without_older(changes, deletions.read(), shape)
    destinations.table.merge(changes, keys, mark, shape.order)


def names_of_deletions(shape: Shape) -> list[str]:
    """Return the names of the columns of a table of deletions."""
    names = [*shape.changes.keys, *shape.changes.sequence, *shape.origin]
    return list(dict.fromkeys(names))


def deletions_schema(rows: StructType, shape: Shape) -> StructType:
    """Return the schema of a table of deletions, given that of the rows."""
    fields = [rows[name] for name in names_of_deletions(shape)]
    return StructType([*fields, StructField(REMEMBERED, TimestampType())])


def check_remembered(changes: DataFrame, shape: Shape, destinations: Destinations) -> None:
    """Raise Refusal if a deletion that followed one of these changes may have been forgotten.

    Such a deletion was written after the change's record was produced.
    """
    deletions = destinations.deletions
    before = None if deletions is None else deletions.forgotten_before()
    if before is None:
        return
    topic, partition, offset, timestamp = (F.col(f"`{name}`") for name in shape.origin)
    old = changes.where(~F.col(DELETES) & (timestamp < F.lit(before)))
    ranges = old.groupBy(topic, partition).agg(F.min(offset), F.max(offset)).collect()
    shown = ", ".join(f"{row[2]} to {row[3]} of partition {row[1]} of {row[0]}" for row in ranges)
    if ranges:
        raise Refusal(
            f"changes at offsets {shown} are from before {before:%Y-%m-%d %H:%M:%S}, and deletions "
            "up to then are forgotten (maintenance.forget_deletions_after): they could write "
            "deleted rows again; leave them out, or run with --from-start"
        )


def without_older(changes: DataFrame, others: DataFrame, shape: Shape) -> DataFrame:
    """Return the changes except those that are older than a row of their key among the others."""
    same = " AND ".join(f"change.`{key}` <=> other.`{key}`" for key in shape.changes.keys)
    older = is_older(shape.order, "change", "other")
    condition = F.expr(f"{same} AND ({older})")
    return changes.alias("change").join(others.alias("other"), condition, "left_anti")
