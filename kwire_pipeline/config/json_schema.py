"""A JSON Schema as columns: the DDL of the fields that it declares.

Rules of this file: a part that has no type as a column is refused with its path, because a column
that is left out would be lost unnoticed. Keywords that only restrict values, such as ``minimum``
and ``pattern``, are ignored: the producer's serializer has checked them. A field is NOT NULL if it
is required and may not be null.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

TYPES: Final = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "STRING"}
FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}
CHOICES: Final = ("oneOf", "anyOf")
OPEN: Final = ("patternProperties", "$dynamicRef", "$recursiveRef")
UNREAD: Final = ("allOf", *OPEN)
"""The keywords that can declare fields, and that are not understood."""
PARTS: Final = ("allOf", *CHOICES, "then", "else")
"""The keywords with further schemas of the same object, which may only restrict its fields."""


@attrs.frozen
class Kind:
    """The type of a value, as DDL, and whether the value may be null."""

    ddl: str
    nullable: bool = False


def ddl_of(text: str) -> str:
    """Return the columns of a JSON Schema as DDL; raise ValueError with the path of a problem."""
    try:
        plain: Json = json.loads(text)
    except ValueError:
        raise ValueError(
            'not a JSON Schema, such as {"type": "object", "properties": '
            '{"id": {"type": "integer"}}}'
        ) from None
    translation = _Translation(plain)
    top = translation.resolve(plain, "$", ())
    if not isinstance(top.get("properties"), dict) or not top["properties"]:
        raise ValueError("$: a value has to be an object with properties")
    return translation.fields(top, "$", (), mark="")


class _Translation:
    """One pass over a schema, whose references point into it."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def resolve(self, plain: Json, path: str, inside: Sequence[str]) -> Mapping[str, Json]:
        """Return the schema at a path, in place of a reference to it."""
        if not isinstance(plain, dict):
            raise ValueError(f"{path}: expected a schema, not {json.dumps(plain):.60}")
        if (target := plain.get("$ref")) is None:
            return plain
        if not isinstance(target, str) or not target.startswith("#"):
            raise ValueError(f"{path}: {target} refers to another schema, which is not supported")
        if target in inside:
            raise ValueError(f"{path}: {target} contains itself, which no table can have")
        place: Json = self._root
        for part in target.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(place, dict) or name not in place:
                raise ValueError(f"{path}: the schema has no {target}")
            place = place[name]
        return self.resolve(place, path, (*inside, target))

    def kind(self, plain: Json, path: str, inside: Sequence[str]) -> Kind:
        """Return the type of a value; ``inside`` has the references that led to it."""
        schema = self.resolve(plain, path, inside)
        if isinstance(plain, dict) and isinstance(target := plain.get("$ref"), str):
            return self.kind(dict(schema), path, (*inside, target))
        for keyword in UNREAD:
            if keyword in schema:
                raise ValueError(f"{path}: {keyword} has no type as a column")
        for keyword in CHOICES:
            if keyword in schema:
                return self.choice(schema[keyword], f"{path} ({keyword})", path, inside)
        names, nullable = _types(schema, path)
        if names == ["object"]:
            return Kind(self.object(schema, path, inside), nullable)
        if names == ["array"]:
            items = schema.get("items")
            if not isinstance(items, dict):
                raise ValueError(f"{path}: an array needs one schema for its items")
            return Kind(f"ARRAY<{self.kind(items, f'{path}[]', inside).ddl}>", nullable)
        ddl = TYPES[names[0]]
        form = schema.get("format")
        if ddl == "STRING" and isinstance(form, str):
            ddl = FORMATS.get(form, ddl)
        return Kind(ddl, nullable)

    def choice(self, branches: Json, name: str, path: str, inside: Sequence[str]) -> Kind:
        """Return the type of a value that is of one type, or null."""
        if not isinstance(branches, list):
            raise ValueError(f"{name}: expected a list of schemas")
        others = [b for b in branches if not (isinstance(b, dict) and b.get("type") == "null")]
        if len(others) != 1:
            raise ValueError(f"{name}: a column has one type, and these are {len(others)}")
        inner = self.kind(others[0], path, inside)
        return Kind(inner.ddl, inner.nullable or len(branches) > 1)

    def object(self, schema: Mapping[str, Json], path: str, inside: Sequence[str]) -> str:
        """Return the type of an object: a struct of its properties, or a map."""
        if schema.get("properties"):
            return f"STRUCT<{self.fields(schema, path, inside, mark=':')}>"
        values = schema.get("additionalProperties")
        if not isinstance(values, dict):
            raise ValueError(f"{path}: an object needs properties, or a schema for all of them")
        return f"MAP<STRING, {self.kind(values, f'{path}.*', inside).ddl}>"

    def fields(
        self, schema: Mapping[str, Json], path: str, inside: Sequence[str], *, mark: str
    ) -> str:
        """Return the fields of an object; ``mark`` comes after each name."""
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise ValueError(f"{path}: properties has to be an object, and required a list")
        for keyword in (*OPEN, *PARTS):
            more = {keyword: schema[keyword]} if keyword in schema else {}
            if not self.field_names(more, path, inside) <= set(properties):
                raise ValueError(f"{path}: {keyword} declares fields that are not in properties")
        names: set[str] = set()
        fields = []
        for name, plain in properties.items():
            if not name or name.lower() in names:
                raise ValueError(f"{path}: the name {name!r} is empty, or differs only in case")
            names.add(name.lower())
            kind = self.kind(plain, f"{path}.{name}", inside)
            end = " NOT NULL" if name in required and not kind.nullable else ""
            quoted = name.replace("`", "``")
            fields.append(f"`{quoted}`{mark} {kind.ddl}{end}")
        return ", ".join(fields)

    def field_names(self, plain: Json, path: str, inside: Sequence[str]) -> set[str]:
        """Return the names of the fields of an object, and the keywords for fields of any name."""
        schema = self.resolve(plain, path, inside)
        if isinstance(plain, dict) and isinstance(target := plain.get("$ref"), str):
            return self.field_names(dict(schema), path, (*inside, target))
        names = {keyword for keyword in OPEN if keyword in schema}
        if isinstance(properties := schema.get("properties"), dict):
            names.update(properties)
        for each in (schema[keyword] for keyword in PARTS if keyword in schema):
            for part in each if isinstance(each, list) else [each]:
                if not isinstance(part, bool):
                    names |= self.field_names(part, path, inside)
        return names


def _types(schema: Mapping[str, Json], path: str) -> tuple[list[str], bool]:
    """Return the type of a value in a list, and whether the value may be null."""
    plain = schema.get("type")
    names: list[Json] = list(plain) if isinstance(plain, list) else [plain]
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if plain is None and isinstance(values, list):
        texts = [value for value in values if value is not None]
        names = ["string" if all(isinstance(value, str) for value in texts) else "enum"]
        names += ["null"] * (len(texts) < len(values))
    if plain is None and isinstance(schema.get("properties"), dict):
        names = ["object"]
    others = [str(name) for name in names if name != "null"]
    if len(others) != 1 or others[0] not in (*TYPES, "object", "array"):
        words = "no type" if plain is None else f"the type {json.dumps(plain)}"
        raise ValueError(
            f"{path}: {words}; expected object, array, string, number, integer or boolean, and "
            "perhaps null"
        )
    return others, "null" in names
