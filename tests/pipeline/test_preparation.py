"""The state of the tables that a run accepts."""

from typing import Any, cast

import attrs
import pytest

from kwire_pipeline.config.document import read_document
from kwire_pipeline.config.load import build
from kwire_pipeline.engine.preparation import check_tables
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.destinations import Destinations
from tests.support.pipeline.orders import SMALLEST

UPSERT = "mode: upsert, keys: [k], sequence_by: [at], tombstones: delete, deletions: shop.gone"
PIPELINE = build(
    read_document(
        "orders.yaml",
        SMALLEST.replace("format: iceberg", UPSERT) + "columns: {k: key, at: offset}\n",
        {},
    ),
    [],
    {},
)


@attrs.frozen
class OwnedTable:
    """A table of pipelines; none if it does not exist."""

    names: tuple[str, ...] = ()

    def exists(self) -> bool:
        return bool(self.names)

    def keys(self) -> tuple[str, ...]:
        return ("k", "by", "at")

    def owners(self) -> dict[str, str]:
        return {name: f"id of {name}" for name in self.names}

    def check_delete(self) -> None:
        pass


def check(table: OwnedTable, deletions: OwnedTable, *, is_new_start: bool = False) -> None:
    destinations = Destinations(
        table=cast(Any, table), dead_letters=None, deletions=cast(Any, deletions)
    )
    check_tables(PIPELINE, destinations, is_new_start=is_new_start)


@pytest.mark.parametrize("table", [OwnedTable(), OwnedTable(("orders",)), OwnedTable(("c",))])
@pytest.mark.parametrize("is_new_start", [False, True])
def test_deletions_of_another_table_are_refused(table: OwnedTable, is_new_start: bool) -> None:
    """A key that another pipeline deletes in its table would be missing in this one."""
    with pytest.raises(Refusal, match=r"pipeline b uses shop\.gone as well, but does not write"):
        check(table, OwnedTable(("b", "orders")), is_new_start=is_new_start)


def test_pipelines_that_write_one_table_share_its_deletions() -> None:
    for table in (OwnedTable(("orders",)), OwnedTable(("b", "orders")), OwnedTable(("b",))):
        check(table, OwnedTable(table.names))
    check(OwnedTable(), OwnedTable(("orders",)))
    check(OwnedTable(), OwnedTable())


def test_deletions_that_no_longer_exist_are_missed() -> None:
    with pytest.raises(Refusal, match=r"shop\.gone no longer exists"):
        check(OwnedTable(("orders",)), OwnedTable())
    check(OwnedTable(("orders",)), OwnedTable(), is_new_start=True)
