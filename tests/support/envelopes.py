"""Debezium's envelopes in Avro, as its converter for a registry writes them."""

import json
from collections.abc import Mapping, Sequence

from tests.support.avro_bytes import number, text, with_id

FIELDS: list[dict[str, object]] = [
    {"name": "id", "type": "string"},
    {"name": "n", "type": ["null", "int"], "default": None},
    {"name": "text", "type": ["null", "string"], "default": None},
    {"name": "data", "type": ["null", "bytes"], "default": None},
]
"""The fields of a row."""
SOURCE = [
    {"name": "lsn", "type": ["null", "long"], "default": None},
    {"name": "table", "type": "string"},
]


def envelope_schema(fields: Sequence[Mapping[str, object]] = FIELDS) -> str:
    """Return the schema of an envelope whose rows have these fields."""
    row = {"type": "record", "name": "Value", "fields": list(fields)}
    source = {"type": "record", "name": "Source", "fields": SOURCE}
    envelope = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    namespace = "server.shop.orders"
    plain = {"type": "record", "name": "Envelope", "namespace": namespace, "fields": envelope}
    return json.dumps(plain)


def change(
    op: str,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    *,
    lsn: int | None = None,
    fields: Sequence[Mapping[str, object]] = FIELDS,
    schema_id: int = 1,
) -> bytes:
    """Return a record's value with the id of its schema, for rows with these fields."""
    rows = b"".join(
        _optional(None if row is None else _row(row, fields)) for row in (before, after)
    )
    source = _optional(None if lsn is None else number(lsn)) + text("orders")
    return with_id(schema_id, rows + source + text(op) + _optional(number(1)))


def _row(row: Mapping[str, object], fields: Sequence[Mapping[str, object]]) -> bytes:
    parts = [_value(row.get(str(field["name"]))) for field in fields]
    return b"".join(
        [
            text(str(row["id"])) if field["name"] == "id" else _optional(part)
            for field, part in zip(fields, parts, strict=True)
        ]
    )


def _value(value: object) -> bytes | None:
    match value:
        case int():
            return number(value)
        case str():
            return text(value)
        case bytes():
            return number(len(value)) + value
    return None


def _optional(data: bytes | None) -> bytes:
    """Return a value of a union of null and another type."""
    return number(0) if data is None else number(1) + data
