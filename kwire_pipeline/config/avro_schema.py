"""An Avro schema as columns, parsed without Spark, so that errors are reported at once.

Spark parses the same text again before it is used. Logical types and unions map to the types that
Spark gives them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from kwire_pipeline.config.ddl import Field, Type

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

PRIMITIVES: Final = {
    "null": "VOID",
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
LOGICAL: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "decimal": "DECIMAL",
}
NUMBERS: Final = ({"INT", "BIGINT"}, {"FLOAT", "DOUBLE"})
"""The pairs of number types that Spark reads as one type, if a union has both."""


def parse_avro(text: str) -> Type:
    """Return the type of a schema in Avro's JSON; raise ValueError if it is invalid."""
    try:
        plain: Json = json.loads(text)
    except ValueError:
        raise ValueError(
            'not an Avro schema in JSON, such as {"type": "record", "name": "Order", "fields": '
            '[{"name": "id", "type": "long"}]}'
        ) from None
    return _Parser().type(plain, "")


class _Parser:
    """One pass over a schema, which knows each name from its definition onwards."""

    def __init__(self) -> None:
        self.names: dict[str, Type | None] = {}
        """The named types; None while a type is being read."""

    def type(self, plain: Json, namespace: str) -> Type:
        match plain:
            case str():
                return self.reference(plain, namespace)
            case list():
                return self.union(plain, namespace)
            case dict():
                return self.definition(plain, namespace)
        raise ValueError(f"{plain!r} is not an Avro type")

    def reference(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Type(PRIMITIVES[name])
        for full in (f"{namespace}.{name}", name):
            if full in self.names:
                kind = self.names[full]
                if kind is None:
                    raise ValueError(f"{name} contains itself, which no table can have")
                return kind
        raise ValueError(f"there is no Avro type {name}")

    def union(self, branches: Sequence[Json], namespace: str) -> Type:
        types = [self.type(branch, namespace) for branch in branches if branch != "null"]
        names = {kind.name for kind in types}
        if len(types) == 1:
            return types[0]
        for numbers in NUMBERS:
            if names == numbers:
                return Type(max(names & {"BIGINT", "DOUBLE"}))
        members = [Field(f"member{number}", kind) for number, kind in enumerate(types)]
        return Type("STRUCT", fields=tuple(members)) if members else Type("VOID")

    def definition(self, plain: Mapping[str, Json], namespace: str) -> Type:
        """Return the type of a JSON object."""
        kind = plain.get("type")
        if kind in ("record", "error"):
            return self.record(plain, namespace)
        if kind in ("enum", "fixed"):
            name = "STRING" if kind == "enum" else "BINARY"
            if kind == "fixed" and plain.get("logicalType") == "decimal":
                name = "DECIMAL"
            self.names[self.full_name(plain, namespace)] = Type(name)
            return Type(name)
        if kind == "array":
            return Type("ARRAY", items=(self.type(plain.get("items"), namespace),))
        if kind == "map":
            values = self.type(plain.get("values"), namespace)
            return Type("MAP", items=(Type("STRING"), values))
        logical = plain.get("logicalType")
        if isinstance(logical, str) and logical in LOGICAL:
            return Type(LOGICAL[logical])
        return self.type(kind, namespace)

    def full_name(self, plain: Mapping[str, Json], namespace: str) -> str:
        name = plain.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"an Avro {plain.get('type')} has no name")
        space = plain.get("namespace", namespace)
        return name if "." in name or not space else f"{space}.{name}"

    def record(self, plain: Mapping[str, Json], namespace: str) -> Type:
        name, fields = self.full_name(plain, namespace), plain.get("fields")
        if not isinstance(fields, list):
            raise ValueError(f"the Avro record {name} has no list of fields")
        inner = name.rpartition(".")[0]
        self.names[name] = None
        read = [self.field(field, inner, name) for field in fields]
        names = [field.name.lower() for field in read]
        for field in read:
            if names.count(field.name.lower()) > 1:
                raise ValueError(f"{field.name} appears twice")
        self.names[name] = kind = Type("STRUCT", fields=tuple(read))
        return kind

    def field(self, plain: Json, namespace: str, record: str) -> Field:
        if not isinstance(plain, dict) or not isinstance(name := plain.get("name"), str):
            raise ValueError(f"a field of the Avro record {record} has no name")
        try:
            return Field(name, self.type(plain.get("type"), namespace))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
