"""The statement that applies changes by key to a table. Plain text only."""

from collections.abc import Sequence

from kwire_pipeline.records.frames import DELETES


def merge_statement(table: str, changes: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Return the MERGE of changes with one row for each key.

    Columns that only the table has keep their values.
    """
    same = " AND ".join(f"own.`{key}` <=> change.`{key}`" for key in keys)
    assignments = ", ".join(f"own.`{name}` = change.`{name}`" for name in columns)
    names = ", ".join(f"`{name}`" for name in columns)
    values = ", ".join(f"change.`{name}`" for name in columns)
    return (
        f"MERGE INTO {table} own USING `{changes}` change ON {same} "
        f"WHEN MATCHED AND change.`{DELETES}` THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {assignments} "
        f"WHEN NOT MATCHED AND NOT change.`{DELETES}` THEN INSERT ({names}) VALUES ({values})"
    )
