"""The application of changes by key to a table, as one MERGE."""

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame

from kwire_pipeline.records.frames import DELETES
from kwire_pipeline.records.unavailable import KEEPS
from kwire_pipeline.tables.table import Mark, session_settings, view_of


def merge_changes(
    table: str, changes: DataFrame, keys: Sequence[str], mark: Mark, settings: Mapping[str, str]
) -> None:
    """Apply a batch's changes; the session settings give the commit its mark."""
    spark = changes.sparkSession
    names = [name for name in changes.columns if name != DELETES]
    columns = [name for name in names if not name.startswith(KEEPS)]
    kept_names = {name.removeprefix(KEEPS) for name in names if name.startswith(KEEPS)}
    with view_of(changes, mark) as view, session_settings(spark, settings):
        spark.sql(merge_statement(table, view, columns, keys, kept_names))


def merge_statement(
    table: str,
    changes: str,
    columns: Sequence[str],
    keys: Sequence[str],
    kept_names: Collection[str] = (),
) -> str:
    """Return the MERGE statement for changes with one row per key.

    Columns that only the table has keep their values, as do those in ``kept_names`` where the
    changes say so.
    """

    def value(name: str) -> str:
        if name not in kept_names:
            return f"change.`{name}`"
        return f"CASE WHEN change.`{KEEPS}{name}` THEN own.`{name}` ELSE change.`{name}` END"

    same = " AND ".join(f"own.`{key}` <=> change.`{key}`" for key in keys)
    assignments = ", ".join(f"own.`{name}` = {value(name)}" for name in columns)
    names = ", ".join(f"`{name}`" for name in columns)
    values = ", ".join(f"change.`{name}`" for name in columns)
    return (
        f"MERGE INTO {table} own USING `{changes}` change ON {same} "
        f"WHEN MATCHED AND change.`{DELETES}` THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {assignments} "
        f"WHEN NOT MATCHED AND NOT change.`{DELETES}` THEN INSERT ({names}) VALUES ({values})"
    )
