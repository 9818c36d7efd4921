"""Reads a table of the lake with PyIceberg or deltalake, in the environment that has them.

    python readers.py < REQUEST

REQUEST is one JSON object; the rows are printed as JSON, each as the values of its columns. With
``roll_back``, the table's newest commit is undone instead.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def answer(request: dict[str, Any]) -> list[list[Any]]:
    """Return the rows of a table, each as the values of its columns, or undo its newest commit."""
    columns = tuple(request.get("columns", ()))
    if request["format"] == "iceberg":
        from pyiceberg.catalog import load_catalog

        table = load_catalog("lake", **request["options"]).load_table(request["table"])
        if request.get("roll_back"):
            newest = table.current_snapshot()
            assert newest is not None
            assert newest.parent_snapshot_id is not None
            table.manage_snapshots().rollback_to_snapshot(newest.parent_snapshot_id).commit()
            return []
        rows = table.scan(selected_fields=columns).to_arrow()
    else:
        from deltalake import DeltaTable  # type: ignore[import-not-found]

        delta = DeltaTable(request["table"], storage_options=request["options"])
        if request.get("roll_back"):
            delta.restore(delta.version() - 1)
            return []
        rows = delta.to_pyarrow_table(columns=list(columns))
    return [[row[column] for column in columns] for row in rows.to_pylist()]


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # The readers' threads sometimes abort a process that ends in the usual way.
