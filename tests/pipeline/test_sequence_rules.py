"""Rules between the keys of a table whose changes have a sequence."""

import pytest

from kwire_pipeline.config.document import ConfigError, read_document
from kwire_pipeline.config.load import build
from tests.support.pipeline.orders import SMALLEST


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (
            "sequence_by: [item]",
            "table.sequence_by: it is for mode: upsert",
        ),
        (
            "mode: upsert, keys: [order_id], sequence_by: [updated_at]",
            "table.sequence_by: the table has no column updated_at",
        ),
        (
            "mode: upsert, keys: [order_id], envelope: debezium, sequence_by: [quantity]",
            "table.deletions: sequence_by needs the name of a table that remembers deletions",
        ),
        (
            "mode: upsert, keys: [order_id], sequence_by: [quantity], deletions: shop.gone",
            "table.deletions: it has no effect without sequence_by and deletions",
        ),
        (
            "mode: upsert, keys: [order_id], tombstones: delete, sequence_by: [quantity]",
            "table.tombstones: a tombstone has no value, so quantity has to come from",
        ),
        (
            "mode: upsert, keys: [k], sequence_by: [quantity], tombstones: delete, "
            "deletions: shop.orders.gone",
            "table.deletions: it lies in the folder of shop.orders, where maintain takes",
        ),
        (
            "mode: upsert, keys: [k], sequence_by: [quantity], tombstones: delete, "
            "deletions: shop.orders_dead.gone",
            "table.deletions: it lies in the folder of shop.orders_dead, where maintain takes",
        ),
    ],
)
def test_sequence_needs_an_order_and_a_memory_of_deletions(keys: str, error: str) -> None:
    text = SMALLEST.replace("format: iceberg", keys)
    with pytest.raises(ConfigError) as raised:
        build(read_document("orders.yaml", text, {}), [], {})
    assert error in str(raised.value)


UPSERT = "mode: upsert, keys: [k], sequence_by: [at], tombstones: delete, deletions: shop.gone"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("shop.orders,", "shop.gone.orders,", "table.name: it lies in the folder of shop.gone"),
        (
            "shop.orders_dead",
            "shop.gone.dead",
            "dead_letters.table: it lies in the folder of shop.gone",
        ),
        ("lake/checkpoint", "lake/shop/gone/c", "checkpoint: it lies in the folder of shop.gone"),
        ("k: key", "k: upper(item)", "so k cannot be an expression, which could read one"),
        ("at: offset", "AT: quantity + 1", "so at cannot be an expression, which could read one"),
        ("at: offset", "at: source.lsn", "a tombstone has no value, so at has to come from"),
    ],
)
def test_deletions_need_a_folder_and_places_of_their_own(old: str, new: str, error: str) -> None:
    """Otherwise `maintain` would take their files for orphans, or tombstones delete other keys."""
    text = SMALLEST.replace("format: iceberg", UPSERT) + "columns: {k: key, at: offset}\n"
    build(read_document("orders.yaml", text, {}), [], {})
    if "source." in new:
        text = text.replace(UPSERT, f"{UPSERT}, envelope: debezium")
    with pytest.raises(ConfigError) as raised:
        build(read_document("orders.yaml", text.replace(old, new), {}), [], {})
    assert error in str(raised.value)
