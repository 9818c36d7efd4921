"""Changes of rows by key: which records write a row, delete one, or are ignored.

A record with a value writes the row of its key. A record without one (a tombstone) deletes that
row, is ignored, or does not fit, as `table.tombstones` says. The value may be a Debezium envelope:
JSON, bare or as ``payload`` beside a schema, or Avro. With ``op`` c, u or r, it writes the row
``after``; with d, it deletes the row ``before``; other values, such as t for a truncated table, do
not fit.

Rules of this file: pure functions of columns. A deletion needs only the columns of the key, and of
the sequence if there is one.
"""

from collections.abc import Sequence
from typing import Final

import attrs
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from kwire_pipeline.config.values import Envelope, Tombstones
from kwire_pipeline.records import avro, exponents, json_text

OPERATION: Final = "op"
BEFORE: Final = "before"
AFTER: Final = "after"
PAYLOAD: Final = "payload"
SOURCE: Final = "source"
LONGS: Final = (
    *("ts_ms", "ts_us", "ts_ns", "lsn", "xmin", "pos", "row", "server_id", "ord"),
    "event_serial_no",
)
NUMBERS: Final = {
    **dict.fromkeys(LONGS, "BIGINT"),
    **dict.fromkeys(("scn", "commit_scn"), "DECIMAL(38, 0)"),
}
"""The fields of an envelope's source that are numbers, with their types; others are text.

txId is text, because it is a number only for some connectors.
"""
WRITES: Final = ("c", "u", "r")
DELETES: Final = "d"


@attrs.frozen(kw_only=True)
class Changes:
    """The rules by which records change rows; by default, rows are appended."""

    keys: tuple[str, ...] = ()
    """The columns that identify a row; empty if rows are appended."""
    envelope: Envelope = Envelope.NONE
    tombstones: Tombstones = Tombstones.DEAD_LETTER
    sequence: tuple[str, ...] = ()
    """The columns that order changes of a key; changes with equal values are ordered by offset."""
    unavailable: str | None = None
    """The placeholder for an unchanged value that the record omits."""

    @property
    def has_deletions(self) -> bool:
        """True if a record can delete a row."""
        return bool(self.keys) and (
            self.envelope is Envelope.DEBEZIUM or self.tombstones is Tombstones.DELETE
        )

    @property
    def rule(self) -> tuple[str, ...]:
        """The keys and the sequence as a table stores them; they cannot change."""
        return (*self.keys, *(f"by {name}" for name in self.sequence))


def envelope_schema(schema: StructType, source: Sequence[str] = ()) -> StructType:
    """Return the schema of an envelope around rows with this schema; ``source`` names fields."""
    parts = [
        StructField(BEFORE, schema, True),
        StructField(AFTER, schema, True),
        StructField(OPERATION, StringType(), True),
    ]
    if source:
        fields = [StructField(name, StringType(), True) for name in source]
        parts.append(StructField(SOURCE, StructType(fields), True))
    return StructType([*parts, StructField(PAYLOAD, StructType(parts), True)])


def open_envelope(envelope: Column, *, has_source: bool = False) -> Column:
    """Return a parsed Debezium envelope as if its row were the value, with its ``op``."""
    value = envelope.getField(json_text.VALUE)

    def part(name: str) -> Column:
        return F.coalesce(value.getField(PAYLOAD).getField(name), value.getField(name))

    operation = part(OPERATION)
    return F.struct(
        _row(operation, part(AFTER), part(BEFORE)).alias(json_text.VALUE),
        envelope.getField(json_text.END).alias(json_text.END),
        envelope.getField(json_text.CORRUPT).alias(json_text.CORRUPT),
        operation.alias(OPERATION),
        *([part(SOURCE).alias(SOURCE)] if has_source else []),
    )


def open_record(change: Column, end: Column, source: Sequence[str] = ()) -> Column:
    """Return a Debezium envelope of Avro as if its row were the value, with its ``op``.

    The fields of its source are text, as in JSON, so that a column has one type in both formats.
    """
    operation = change.getField(OPERATION)
    texts = [change.getField(SOURCE).getField(name).cast("string").alias(name) for name in source]
    return F.struct(
        _row(operation, change.getField(AFTER), change.getField(BEFORE)).alias(avro.VALUE),
        end.alias(avro.END),
        operation.alias(OPERATION),
        *([F.struct(*texts).alias(SOURCE)] if texts else []),
    )


def _row(operation: Column, after: Column, before: Column) -> Column:
    return F.when(operation.isin(*WRITES), after).when(operation == DELETES, before)


def deletes(envelope: Column) -> Column:
    """Return the condition that an opened envelope deletes a row."""
    return F.equal_null(envelope.getField(OPERATION), F.lit(DELETES))


def source_field(envelope: Column, name: str) -> Column:
    """Return a field of an envelope's source; null if it is absent or not the expected number."""
    text = envelope.getField(SOURCE).getField(name)
    return exponents.moderate(text).cast(NUMBERS[name]) if name in NUMBERS else text


def row_text(data: Column, envelope: Column) -> Column:
    """Return the JSON text of the row in an envelope."""
    text = data.cast("string")

    def part(name: str) -> Column:
        inner = F.get_json_object(text, f"$.{PAYLOAD}.{name}")
        return F.coalesce(inner, F.get_json_object(text, f"$.{name}"))

    return F.when(deletes(envelope), part(BEFORE)).otherwise(part(AFTER))


def envelope_problem(envelope: Column) -> Column:
    """Return what is wrong with an envelope that has no row, as text; null for any other."""
    operation = envelope.getField(OPERATION)
    unknown = F.coalesce(~operation.isin(*WRITES, DELETES), F.lit(True))
    part = F.when(operation == DELETES, F.lit(BEFORE)).otherwise(F.lit(AFTER))
    return F.when(unknown, F.lit("op is not c, u, r or d")).when(
        envelope.getField(json_text.VALUE).isNull(), F.concat(part, F.lit(" is missing"))
    )
