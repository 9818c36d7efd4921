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
    ],
)
def test_sequence_needs_an_order_and_a_memory_of_deletions(keys: str, error: str) -> None:
    text = SMALLEST.replace("format: iceberg", keys)
    with pytest.raises(ConfigError) as raised:
        build(read_document("orders.yaml", text, {}), [], {})
    assert error in str(raised.value)
