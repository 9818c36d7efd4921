"""The typed fields of a key or value: one interface for all formats that have fields.

A key or value is parsed once into an envelope, from which its fields, the verdict and, for misfits,
the reason as text are read.
"""

from collections.abc import Mapping
from typing import Protocol

import attrs
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from kwire_pipeline.records import avro, changes, json_text
from kwire_pipeline.records.avro import AvroFields
from kwire_pipeline.records.timestamps import Units


class Fields(Protocol):
    """The expressions over the bytes of a key or value, and over its envelope."""

    @property
    def kind(self) -> DataType:
        """The type of the whole key or value."""

    @property
    def may_be_null(self) -> bool:
        """True if a null key fits."""

    def parse(self, data: Column) -> Column:
        """Return the parsed bytes."""

    def open(self, parsed: Column) -> Column:
        """Return the envelope, built only from parts of the parsed bytes."""

    def fits(self, data: Column, envelope: Column) -> Column:
        """Return the condition that the bytes have this format and fit the schema."""

    def whole(self, envelope: Column) -> Column:
        """Return the whole key or value in its type."""

    def field(self, envelope: Column, name: str) -> Column:
        """Return one top-level field in its type."""

    def reason(self, data: Column, envelope: Column) -> Column:
        """Return, as text, why the bytes do not fit."""


@attrs.frozen
class JsonFields:
    """The fields of a JSON object."""

    kind: StructType
    units: Units = attrs.field(factory=dict)
    has_rest: bool = False
    """True if the envelope also has undeclared fields."""

    @property
    def may_be_null(self) -> bool:
        return all(field.nullable for field in self.kind.fields)

    def parse(self, data: Column) -> Column:
        return json_text.parse(data, self.kind, has_rest=self.has_rest)

    def open(self, parsed: Column) -> Column:
        return json_text.open_array(parsed, has_rest=self.has_rest)

    def fits(self, data: Column, envelope: Column) -> Column:
        return json_text.fits(data, envelope, self.kind, self.units)

    def whole(self, envelope: Column) -> Column:
        value = envelope.getField(json_text.VALUE)
        fields = [self.field(envelope, name).alias(name) for name in self.kind.names]
        return F.when(value.isNotNull(), F.struct(*fields))

    def field(self, envelope: Column, name: str) -> Column:
        return json_text.field(envelope, name, self.kind, self.units)

    def reason(self, data: Column, envelope: Column) -> Column:
        return json_text.reason(data, envelope, self.kind, self.units)


@attrs.frozen
class Frame:
    """The ids of a registry's JSON Schemas that may come before JSON text."""

    ids: tuple[int, ...] = ()
    problems: Mapping[int, str] = attrs.field(factory=dict)
    """The reason, as text, why each of these ids has no JSON Schema."""


@attrs.frozen(kw_only=True)
class FramedJsonFields(JsonFields):
    """The fields of a JSON object after a schema id; the text itself says what it holds."""

    frame: Frame

    def _text(self, data: Column) -> Column:
        return F.when(avro.id_of(data).isin(list(self.frame.ids)), avro.body(data))

    def parse(self, data: Column) -> Column:
        return super().parse(self._text(data))

    def fits(self, data: Column, envelope: Column) -> Column:
        return super().fits(self._text(data), envelope)

    def reason(self, data: Column, envelope: Column) -> Column:
        problem = avro.head_problem(data, self.frame.ids, self.frame.problems)
        return F.coalesce(problem, super().reason(self._text(data), envelope))


@attrs.frozen
class DebeziumFields(JsonFields):
    """The fields of the row in a Debezium envelope."""

    source: tuple[str, ...] = ()
    """The fields of the envelope's source that become columns."""

    def parse(self, data: Column) -> Column:
        return json_text.parse(data, changes.envelope_schema(self.kind, self.source))

    def open(self, parsed: Column) -> Column:
        envelope = json_text.open_array(parsed)
        return changes.open_envelope(envelope, has_source=bool(self.source))

    def is_deletion(self, data: Column, envelope: Column) -> Column:
        """Return the condition that the value is a change that deletes a row."""
        return changes.deletes(envelope) & json_text.is_one_text(data, envelope)

    def reason(self, data: Column, envelope: Column) -> Column:
        return json_text.reason(
            data,
            envelope,
            self.kind,
            self.units,
            row=changes.row_text(data, envelope),
            row_problem=changes.envelope_problem(envelope),
        )


@attrs.frozen
class DebeziumAvroFields:
    """The fields of the row in a Debezium envelope of Avro."""

    change: AvroFields
    """The decoding of the whole envelope."""
    kind: StructType
    """The type of the row."""
    source: tuple[str, ...] = ()
    """The fields of the envelope's source that become columns."""

    @property
    def may_be_null(self) -> bool:
        return True

    @property
    def _row(self) -> AvroFields:
        """The fields of an opened envelope, whose value is the row."""
        return attrs.evolve(self.change, kind=self.kind)

    def parse(self, data: Column) -> Column:
        return self.change.parse(data)

    def open(self, parsed: Column) -> Column:
        change = self.change.whole(parsed)
        return changes.open_record(change, parsed.getField(avro.END), self.source)

    def is_deletion(self, data: Column, envelope: Column) -> Column:
        """Return the condition that the value is a change that deletes a row."""
        return changes.deletes(envelope) & self._row.fits(data, envelope)

    def fits(self, data: Column, envelope: Column) -> Column:
        return self._row.fits(data, envelope) & self.whole(envelope).isNotNull()

    def whole(self, envelope: Column) -> Column:
        return self.change.whole(envelope)

    def field(self, envelope: Column, name: str) -> Column:
        return self.change.field(envelope, name)

    def reason(self, data: Column, envelope: Column) -> Column:
        is_whole = self._row.fits(data, envelope)
        other = self._row.reason(data, envelope)
        return F.when(is_whole, changes.envelope_problem(envelope)).otherwise(other)
