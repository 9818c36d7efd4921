"""The application of changes by key to a table, as one MERGE.

With an order, a change is applied only if it is newer than the row. So changes can be applied
repeatedly and in any order: the newest change remains.
"""

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame

from kwire_pipeline.records.frames import DELETES
from kwire_pipeline.records.unavailable import KEEPS
from kwire_pipeline.tables.table import session_settings, view_of


def merge_changes(
    table: str,
    changes: DataFrame,
    keys: Sequence[str],
    order: Sequence[str],
    settings: Mapping[str, str],
) -> None:
    """Apply a batch's changes; the session settings give the commit its mark."""
    spark = changes.sparkSession
    names = [name for name in changes.columns if name != DELETES]
    columns = [name for name in names if not name.startswith(KEEPS)]
    kept_names = {name.removeprefix(KEEPS) for name in names if name.startswith(KEEPS)}
    with view_of(changes) as view, session_settings(spark, settings):
        spark.sql(merge_statement(table, view, columns, keys, kept_names, order))


def merge_statement(
    table: str,
    changes: str,
    columns: Sequence[str],
    keys: Sequence[str],
    kept_names: Collection[str] = (),
    order: Sequence[str] = (),
) -> str:
    """Return the MERGE statement for changes with one row per key.

    Columns that only the table has keep their values, and so do the columns in ``kept_names`` if a
    change requires that. With columns in ``order``, a row that is not older than its change stays.
    """
    is_newer = f" AND ({is_older(order, 'own', 'change')})" if order else ""
    # The columns have the names of the table, which may differ in case from those of the rows.
    may_be_kept = {name.lower() for name in kept_names}

    def value(name: str) -> str:
        if name.lower() not in may_be_kept:
            return f"change.`{name}`"
        return f"CASE WHEN change.`{KEEPS}{name}` THEN own.`{name}` ELSE change.`{name}` END"

    same = " AND ".join(f"own.`{key}` <=> change.`{key}`" for key in keys)
    assignments = ", ".join(f"own.`{name}` = {value(name)}" for name in columns)
    names = ", ".join(f"`{name}`" for name in columns)
    values = ", ".join(f"change.`{name}`" for name in columns)
    return (
        f"MERGE INTO {table} own USING `{changes}` change ON {same} "
        f"WHEN MATCHED AND change.`{DELETES}`{is_newer} THEN DELETE "
        f"WHEN MATCHED{is_newer} THEN UPDATE SET {assignments} "
        f"WHEN NOT MATCHED AND NOT change.`{DELETES}` THEN INSERT ({names}) VALUES ({values})"
    )


def is_older(order: Sequence[str], first: str, second: str) -> str:
    """Return the SQL condition that one row or change is older than another one.

    The columns in ``order`` are compared one after the other; null comes before every value.
    """
    condition = "false"
    for name in reversed(order):
        own, other = f"{first}.`{name}`", f"{second}.`{name}`"
        is_less = f"({own} IS NULL AND {other} IS NOT NULL OR coalesce({own} < {other}, false))"
        condition = f"{is_less} OR ({own} <=> {other} AND ({condition}))"
    return condition
