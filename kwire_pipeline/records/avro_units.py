"""The logical types in a writer's Avro schema, which Avro's own resolution ignores.

Avro reads the numbers of a writer as if they had the logical types of the reader: milliseconds
would become microseconds, and a decimal with four digits after the point one with two. So a
reader's schema gets the writer's units of time, which changes no type of Spark, and other
differences are problems. A number without a logical type on one of the two sides is left alone.

Rules of this file: plain data only.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from kwire_pipeline.config.avro_schema import Json

TIMESTAMP: Final = "timestamp-"
DECIMAL: Final = "decimal"
READ: Final = ("millis", "micros")
"""The units of timestamps that Spark reads."""
UNITS: Final = (*READ, "nanos")
KNOWN: Final = {
    *("date", "time-millis", "time-micros", DECIMAL),
    *(f"{place}{TIMESTAMP}{unit}" for place in ("", "local-") for unit in UNITS),
}
"""The logical types that say what a number means."""

COMPLEX: Final = ("record", "error", "enum", "fixed", "array", "map")


@attrs.frozen
class Reading:
    """A reader's schema for the records of one writer."""

    reader: str
    """The schema in Avro's JSON, with the writer's units of time."""
    problems: tuple[str, ...] = ()
    """The fields that would be misread, each as text."""


def reading_of(writer: str, reader: str) -> Reading:
    """Return how to read the records of a writer."""
    plain = json.loads(writer)
    comparison = _Comparison(dict(_types_by_name(plain)))
    own = json.loads(reader)
    adapted = comparison.adapt(own, plain, "")
    # An unchanged schema keeps its text.
    text = reader if adapted == own else json.dumps(adapted)
    return Reading(text, tuple(dict.fromkeys(comparison.problems)))


def _types_by_name(plain: Json) -> Iterator[tuple[str, Json]]:
    """Yield the named types of a schema by their names without namespaces, the first one last."""
    match plain:
        case list():
            for branch in reversed(plain):
                yield from _types_by_name(branch)
        case dict():
            fields = plain.get("fields")
            for field in reversed(fields if isinstance(fields, list) else []):
                yield from _types_by_name(field.get("type") if isinstance(field, dict) else None)
            for key in ("type", "items", "values"):
                yield from _types_by_name(plain.get(key))
            if isinstance(name := plain.get("name"), str) and "type" in plain:
                yield _simple(name), plain


def _simple(name: str) -> str:
    return name.rpartition(".")[2]


@attrs.define
class _Comparison:
    """One pass over a reader's schema and the parts of the writer's that belong to it."""

    named: Mapping[str, Json]
    """The writer's named types."""
    problems: list[str] = attrs.field(factory=list)

    def adapt(self, reader: Json, writer: Json, path: str) -> Json:
        """Return a part of the reader's schema with the units of the same part of the writer's."""
        writer = self.resolve(writer)
        if isinstance(reader, list):
            return [self.adapt(branch, writer, path) for branch in reader]
        if not isinstance(reader, dict):
            return reader  # A type without a logical one, or a name that is defined before.
        if isinstance(writer, list):
            writer = self.branch(reader, writer)
        inner = reader.get("type")
        if isinstance(inner, dict | list):
            return {**reader, "type": self.adapt(inner, writer, path)}
        if not isinstance(writer, dict):
            return reader
        for key in ("items", "values"):
            if key in reader and key in writer:
                return {**reader, key: self.adapt(reader[key], writer[key], path)}
        fields, others = reader.get("fields"), writer.get("fields")
        if isinstance(fields, list) and isinstance(others, list):
            return {**reader, "fields": [self.field(each, others, path) for each in fields]}
        return self.number(reader, writer, path)

    def field(self, reader: Json, others: Sequence[Json], path: str) -> Json:
        """Return a field of the reader's record with the units of the writer's field."""
        if not isinstance(reader, dict):
            return reader
        aliases = reader.get("aliases")
        names = [reader.get("name"), *(aliases if isinstance(aliases, list) else [])]
        for other in others:
            if isinstance(other, dict) and other.get("name") in names:
                place = f"{path}.{names[0]}" if path else f"{names[0]}"
                return {**reader, "type": self.adapt(reader["type"], other.get("type"), place)}
        return reader

    def number(
        self, reader: dict[str, Json], writer: Mapping[str, Json], path: str
    ) -> dict[str, Json]:
        """Return a type with the writer's unit; record a problem if the types mean other things."""
        own, other = reader.get("logicalType"), writer.get("logicalType")
        if not isinstance(own, str) or not isinstance(other, str) or not {own, other} <= KNOWN:
            return reader
        place, sign, _ = own.partition(TIMESTAMP)
        unit = other.partition(TIMESTAMP)[2]
        if sign and unit in READ:
            return {**reader, "logicalType": f"{place}{sign}{unit}"}
        if own != other or reader.get("scale", 0) != writer.get("scale", 0):
            self.problems.append(
                f"{path} is {_words(writer)}, and {_words(reader)} in the file's schema"
            )
        return reader

    def resolve(self, writer: Json) -> Json:
        """Return the type of a writer in place of its name, or of an object that only wraps it."""
        if isinstance(writer, str):
            return self.named.get(_simple(writer), writer)
        inner = writer.get("type") if isinstance(writer, dict) else None
        is_name = isinstance(inner, str) and inner not in COMPLEX and _simple(inner) in self.named
        return self.resolve(inner) if isinstance(inner, dict | list) or is_name else writer

    def branch(self, reader: Mapping[str, Json], branches: Sequence[Json]) -> Json:
        """Return the branch of a writer's union that a type of the reader reads."""
        types = [self.resolve(branch) for branch in branches if branch != "null"]
        same = [each for each in types if _kind(each) == _kind(dict(reader))]
        of_name = [each for each in same if _name(each) == _name(dict(reader))]
        return next(iter(of_name or same or types), None)


def _kind(plain: Json) -> Json:
    return plain.get("type") if isinstance(plain, dict) else plain


def _name(plain: Json) -> Json:
    name = plain.get("name") if isinstance(plain, dict) else None
    return _simple(name) if isinstance(name, str) else None


def _words(plain: Mapping[str, Json]) -> str:
    """Return a logical type as text."""
    if plain.get("logicalType") == DECIMAL:
        return f"decimal({plain.get('precision')},{plain.get('scale', 0)})"
    return str(plain.get("logicalType"))
