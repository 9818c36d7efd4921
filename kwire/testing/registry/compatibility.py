"""Decides whether a schema may follow others of its subject. Pure.

Rules: Avro's own library parses and compares schemas. JSON Schema and Protobuf schemas are only
stored and count as compatible, because no maintained library compares them.
"""

import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from kwire.testing.registry.errors import INVALID_SCHEMA, RegistryError

AVRO: Final = "AVRO"
JSON_SCHEMA: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
TYPES: Final = (JSON_SCHEMA, PROTOBUF, AVRO)
LEVELS: Final = (
    "NONE",
    *("BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)
# Any: a schema of Avro's library, which is imported only when it is needed.
AvroSchema: TypeAlias = Any


class Schema(NamedTuple):
    """A registered schema, with the texts of the schemas to which it refers."""

    text: str
    type: str = AVRO
    references: tuple[tuple[str, str, int], ...] = ()
    """The name, subject and version of each reference."""
    referenced: tuple[str, ...] = ()
    """The texts of the referenced schemas, each after the texts to which it refers itself."""

    @property
    def canonical(self) -> tuple[object, ...]:
        """A value that is equal for two schemas if they get the same id."""
        try:
            text = self.text if self.type == PROTOBUF else json.dumps(json.loads(self.text))
        except ValueError:
            text = self.text
        return self.type, text, self.references


def check_schema(schema: Schema) -> None:
    """Raise RegistryError for a text that is not a schema of its type."""
    if schema.type not in TYPES:
        raise RegistryError(INVALID_SCHEMA, f"Invalid schema type {schema.type}")
    if schema.type == AVRO:
        _parse(schema)
    elif schema.type == JSON_SCHEMA:
        try:
            json.loads(schema.text)
        except ValueError as error:
            raise _invalid(schema, error) from error


def incompatibilities(level: str, schema: Schema, earlier: Sequence[Schema]) -> list[str]:
    """Return why a schema may not follow earlier ones, oldest first; empty if it may."""
    if level == "NONE":
        return []
    compared = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
    reasons: list[str] = []
    for other in reversed(compared):
        if other.type != schema.type:
            reasons.append(f"the schema is {schema.type}, an earlier one {other.type}")
        elif schema.type == AVRO:
            new, old = _parse(schema), _parse(other)
            if not level.startswith("FORWARD"):
                reasons += _differences(new, old, "the new schema cannot read data of an old one")
            if not level.startswith("BACKWARD"):
                reasons += _differences(old, new, "an old schema cannot read data of the new one")
    return reasons


def _differences(reader: AvroSchema, writer: AvroSchema, what: str) -> Iterable[str]:
    library = _avro("compatibility")
    result = library.ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
    if result.compatibility is library.SchemaCompatibilityType.compatible:
        return []
    places = ", ".join(sorted(result.locations))
    return [f"{what}: {'; '.join(sorted(result.messages))} at {places}"]


def _parse(schema: Schema) -> AvroSchema:
    library = _avro("schema")
    names = _avro("name").Names()
    try:
        for text in (*schema.referenced, schema.text):
            parsed = library.make_avsc_object(_loads(text), names)
    except (ValueError, _avro("errors").AvroException) as error:
        raise _invalid(schema, error) from error
    return parsed


def _loads(text: str) -> object:
    """Parse a schema; a primitive type may be given without quotes."""
    try:
        return json.loads(text)
    except ValueError:
        if text.isidentifier():
            return text
        raise


def _invalid(schema: Schema, error: Exception) -> RegistryError:
    return RegistryError(
        INVALID_SCHEMA, f"Invalid schema {schema.text[:200]} of type {schema.type}: {error}"
    )


def _avro(module: str) -> ModuleType:
    try:
        return import_module(f"avro.{module}")
    except ImportError as error:
        raise RegistryError(
            500, "Avro schemas are compared by avro: pip install 'kwire[testing]'"
        ) from error
