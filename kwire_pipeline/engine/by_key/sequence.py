"""Changes by key that may arrive late: the newest one counts, whenever it arrives.

A row has the sequence of its last change in its own columns. A deleted key has no row, so a table
of deletions has its key and sequence. An older change is recognized by one of the two, and not
applied.

A deletion may be forgotten some time after it was written there, however old its record is: when
a topic is read for the first time, older changes of the key may still be to come. A change that is
read a second time may follow a deletion that is forgotten, so it is checked for that.

Rules of this file: deletions are remembered before they are applied, so that no run ends between
the two with a row deleted and its deletion unknown. All of it can be repeated, because the newest
change stays the newest one.
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
    """Apply changes, one for each key; ``mark`` is that of their batch, if they belong to one."""
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
    """Raise Refusal if the deletion that followed one of these changes may be forgotten.

    It was written after the record of the change.
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
    """Return the changes that are not older than a row of their key among the others."""
    same = " AND ".join(f"change.`{key}` <=> other.`{key}`" for key in shape.changes.keys)
    older = is_older(shape.order, "change", "other")
    condition = F.expr(f"{same} AND ({older})")
    return changes.alias("change").join(others.alias("other"), condition, "left_anti")
