"""Avro in a record, decoded by Spark's own `from_avro`.

`from_avro` ignores bytes after the datum and returns nulls for a datum that it cannot decode. So
the datum is decoded as the first field of an enclosing record whose last field is a hash of the
bytes. If the hash is not read back, the bytes are not exactly one datum of the writer's schema.

With a registry, the bytes begin with a zero and the four bytes of the writer's schema id. Each
schema is one branch, so a record is decoded once, with its own schema; the reader's schema gives
all branches the same type.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from kwire_pipeline.records.utf8 import has_damaged_text

VALUE: Final = "value"
END: Final = "end"
HASH_BYTES: Final = 8
HEAD_BYTES: Final = 5
"""The number of bytes (a zero and the id) before a datum."""
REST: Final = (1 << 31) - 1
NO_DATUM: Final = "not a record of the schema"
EXCESS: Final = "bytes after the Avro record"
NO_TEXT: Final = "a text is not UTF-8"


@attrs.frozen(kw_only=True)
class AvroFields:
    """The fields of Avro data."""

    kind: DataType
    """The Spark type of the reader's schema."""
    reader: str
    """The schema of the rows, as Avro's JSON."""
    writers: Mapping[int, str] | None = None
    """The writers' schemas by id; None if records have no ids and use the reader's schema."""
    readers: Mapping[int, str] = attrs.field(factory=dict)
    """The reader's schemas for writers with other units of time."""
    problems: Mapping[int, str] = attrs.field(factory=dict)
    """The reason, as text, why each of these ids has no schema."""

    @property
    def may_be_null(self) -> bool:
        return True

    def parse(self, data: Column) -> Column:
        if self.writers is None:
            return _decode(data, data, self.reader, self.reader)
        kind = StructType([StructField(VALUE, self.kind), StructField(END, BinaryType())])
        datum = body(data)
        envelope = F.lit(None).cast(kind)
        for schema_id, writer in sorted(self.writers.items(), reverse=True):
            is_own = F.substring(data, 1, HEAD_BYTES) == F.lit(head(schema_id))
            reader = self.readers.get(schema_id, self.reader)
            envelope = F.when(is_own, _decode(data, datum, writer, reader)).otherwise(envelope)
        return envelope

    def open(self, parsed: Column) -> Column:
        return parsed

    def fits(self, data: Column, envelope: Column) -> Column:
        is_whole = F.equal_null(envelope.getField(END), _hash(data))
        damage = has_damaged_text(envelope.getField(VALUE), self.kind)
        if damage is not None:
            is_whole &= ~F.coalesce(damage, F.lit(False))
        return F.coalesce(data.isNotNull() & is_whole, F.lit(False))

    def whole(self, envelope: Column) -> Column:
        return envelope.getField(VALUE)

    def field(self, envelope: Column, name: str) -> Column:
        return envelope.getField(VALUE).getField(name)

    def reason(self, data: Column, envelope: Column) -> Column:
        end = envelope.getField(END)
        # A datum whose hash is read back is whole.
        excess = F.when(F.equal_null(end, _hash(data)), F.lit(NO_TEXT))
        excess = excess.when(end.isNotNull(), F.lit(EXCESS))
        words = F.when(data.isNull(), F.lit("the value is null"))
        if self.writers is None:
            return F.coalesce(words, excess, F.lit(NO_DATUM))
        no_datum = F.concat(
            F.lit("not a record of schema "),
            id_of(data).cast("string"),
            F.lit(" that the file's schema reads"),
        )
        problem = head_problem(data, list(self.writers), self.problems)
        return F.coalesce(problem, excess, no_datum)


def head_problem(data: Column, known_ids: Sequence[int], problems: Mapping[int, str]) -> Column:
    """Return, as text, why bytes have no known schema id at their beginning; null if they have."""
    schema_id = id_of(data)
    words = F.when(data.isNull(), F.lit("the value is null"))
    for number, problem in sorted(problems.items()):
        words = words.when(F.equal_null(schema_id, F.lit(number)), F.lit(problem))
    name = F.concat(F.lit("schema "), schema_id.cast("string"))
    return words.when(
        schema_id.isNull(), F.lit("no zero byte and schema id at the beginning")
    ).when(
        ~schema_id.isin(list(known_ids)),
        F.concat(name, F.lit(" was not asked for: too many unknown ids in a batch")),
    )


def body(data: Column) -> Column:
    """Return the bytes after the schema id."""
    return F.substring(data, HEAD_BYTES + 1, REST)


def head(schema_id: int) -> bytearray:
    """Return the bytes that precede a datum with this schema id."""
    return bytearray(b"\0" + schema_id.to_bytes(HEAD_BYTES - 1, "big"))


def id_of(data: Column) -> Column:
    """Return the schema id at the beginning of the bytes; null if there is none."""
    has_head = (F.length(data) >= HEAD_BYTES) & (F.substring(data, 1, 1) == F.lit(bytearray(1)))
    digits = F.hex(F.substring(data, 2, HEAD_BYTES - 1))
    return F.when(has_head, F.conv(digits, 16, 10).cast("bigint"))


def envelope_schema(schema: str) -> str:
    """Return the schema of a record with a datum and a hash, as Avro's JSON."""
    fixed = {"type": "fixed", "name": "KwireHash", "size": HASH_BYTES}
    fields = [{"name": VALUE, "type": json.loads(schema)}, {"name": END, "type": fixed}]
    return json.dumps({"type": "record", "name": "KwireEnvelope", "fields": fields})


def _decode(data: Column, datum: Column, writer: str, reader: str) -> Column:
    options = {"mode": "PERMISSIVE", "avroSchema": envelope_schema(reader)}
    return from_avro(F.concat(datum, _hash(data)), envelope_schema(writer), options)


def _hash(data: Column) -> Column:
    return F.xxhash64(data).cast("binary")
