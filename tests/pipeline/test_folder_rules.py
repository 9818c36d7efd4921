"""Folders of a pipeline that must not lie in each other, however they are written."""

from pathlib import Path

import pytest

from kwire_pipeline.config.document import ConfigError, read_document
from kwire_pipeline.config.load import Flag, build
from tests.support.pipeline.orders import SMALLEST

STORE = ("table.catalog.type=jdbc", "table.catalog.uri=jdbc:sqlite:catalog.db")
HIVE = ("table.catalog.type=hive", "table.catalog.uri=thrift://hive:9083")


def problems(warehouse: str, checkpoint: str, *settings: str) -> list[str]:
    texts = (f"table.warehouse={warehouse}", f"checkpoint={checkpoint}", *settings)
    flags = [Flag(key, text) for key, _, text in (each.partition("=") for each in texts)]
    try:
        build(read_document("orders.yaml", SMALLEST, {}), flags, {})
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize(
    ("warehouse", "checkpoint", "settings"),
    [
        ("s3://lake/tables", "s3a://lake/tables/shop/orders/checkpoint", STORE),
        ("s3://lake/tables/", "s3a://lake//tables/shop/orders", STORE),
        ("abfs://c@a.example/t", "abfss://c@a.example/t/shop/orders_dead/c", STORE),
        ("lake", "{cwd}/lake/shop/orders/checkpoint", ()),
        ("{cwd}/lake", "lake/shop/../shop/orders/checkpoint", ()),
        ("file://{cwd}/lake", "lake/shop/orders/checkpoint", ()),
        ("s3://lake", "s3a://lake/shop.db/orders/checkpoint", HIVE),
        ("gs://other", "gs://lake/shop/orders/c", (*STORE, "table.catalog.options=warehouse=gs://lake")),
    ],
)  # fmt: skip
def test_checkpoint_in_the_folder_of_a_table_is_refused_however_both_are_written(
    warehouse: str, checkpoint: str, settings: tuple[str, ...]
) -> None:
    """`maintain` would take its files for orphans, and delete them."""
    cwd = str(Path.cwd())
    own, other = (text.replace("{cwd}", cwd) for text in (warehouse, checkpoint))
    (problem,) = problems(own, other, *settings)
    assert problem.startswith("--checkpoint: it lies in the folder of shop.orders")


@pytest.mark.parametrize(
    ("warehouse", "checkpoint", "settings"),
    [
        ("s3://lake/tables", "s3a://lake/checkpoint", STORE),
        ("s3://lake/tables", "s3a://other/tables/shop/orders/c", STORE),
        ("s3://lake/tables", "s3a://lake/tables/shop/orders_checkpoint", STORE),
        ("s3://lake/tables", "gs://lake/tables/shop/orders/c", STORE),
        ("lake", "/lake/shop/orders/checkpoint", ()),
        ("lake", "lake/shop.db/orders/checkpoint", ()),
    ],
)
def test_checkpoint_beside_the_tables_is_accepted(
    warehouse: str, checkpoint: str, settings: tuple[str, ...]
) -> None:
    assert problems(warehouse, checkpoint, *settings) == []
