"""A JSON Schema as columns, and what has no type as a column."""

import json
import re

import pytest

from kwire_pipeline.config.ddl import parse_ddl
from kwire_pipeline.config.json_schema import ddl_of


def columns(properties: dict[str, object], **more: object) -> str:
    return ddl_of(json.dumps({"type": "object", "properties": properties, **more}))


def test_types_formats_and_nulls_become_columns() -> None:
    ddl = columns(
        {
            "id": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": ["string", "null"], "format": "date"},
            "mail": {"type": "string", "format": "email", "maxLength": 80},
            "price": {"type": "number", "minimum": 0},
            "paid": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
            "state": {"enum": ["open", "shut"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "by name": {"type": "object", "additionalProperties": {"type": "number"}},
            "who": {"$ref": "#/definitions/Person"},
        },
        required=["id", "day", "paid", "who"],
        definitions={
            "Person": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "a`b": {"type": "integer"}},
                "required": ["name"],
            }
        },
    )
    assert ddl.split(", ", 8) == [
        "`id` BIGINT NOT NULL",
        "`at` TIMESTAMP",
        "`day` DATE",
        "`mail` STRING",
        "`price` DOUBLE",
        "`paid` BOOLEAN",
        "`state` STRING",
        "`tags` ARRAY<STRING>",
        "`by name` MAP<STRING, DOUBLE>, `who` STRUCT<`name`: STRING NOT NULL, `a``b`: BIGINT> "
        "NOT NULL",
    ]
    assert [field.name for field in parse_ddl(ddl)][-2:] == ["by name", "who"]


LOOP = {"type": "array", "items": {"$ref": "#/properties/a"}}


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({}, r"$.a: no type; expected object, array"),
        ({"type": "object"}, r"$.a: an object needs properties, or a schema for all"),
        ({"type": "object", "properties": {"b": {"type": "null"}}}, '$.a.b: the type "null"; exp'),
        ({"type": "array"}, "$.a: an array needs one schema for its items"),
        ({"type": "array", "items": {"type": "blob"}}, '$.a[]: the type "blob"; expected'),
        ({"type": ["string", "integer"]}, '$.a: the type ["string", "integer"]; expected'),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, "$.a (anyOf): a column has one type"),
        ({"allOf": [{"type": "string"}]}, "$.a: allOf has no type as a column"),
        ({"$ref": "other.json"}, "$.a: other.json refers to another schema"),
        ({"$ref": "#/definitions/X"}, "$.a: the schema has no #/definitions/X"),
        (LOOP, "$.a[][]: #/properties/a contains itself"),
        ({"type": "object", "additionalProperties": {}}, "$.a.*: no type"),
        ({"enum": ["a", 1]}, "$.a: no type"),
        (True, "$.a: expected a schema, not true"),
    ],
)
def test_what_is_no_column_is_refused_with_its_path(schema: object, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
        columns({"a": schema})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "not a JSON Schema, such as"),
        ('{"type": "string"}', "$: a value has to be an object with properties"),
        ('{"properties": {"a": {"type": "string"}, "A": {"type": "string"}}}', "$: the name 'A'"),
    ],
)
def test_value_has_to_be_an_object(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
        ddl_of(text)


REQUIRES = {"required": ["a"]}
KNOWN = {"properties": {"a": {"minLength": 3}}}
OTHER = {"properties": {"b": {"type": "string"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "then", "else"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_fields_that_only_a_part_of_an_object_declares_are_no_silent_loss(
    keyword: str, is_nested: bool
) -> None:
    """A part may restrict the fields of the object; a field of its own would be no column."""

    def translate(*parts: object) -> str:
        value = list(parts) if keyword.endswith("Of") else parts[-1]
        schema = {"type": "object", "properties": {"a": {"type": "string"}}, keyword: value}
        if is_nested:
            return columns({"x": schema})
        return ddl_of(json.dumps({**schema, "definitions": {"Other": OTHER}}))

    if not (is_nested and keyword.endswith("Of")):
        assert "`a`" in translate(REQUIRES, KNOWN)
    deeper: list[object] = [{"then": OTHER}, {"allOf": [True, OTHER]}, {"patternProperties": {}}]
    for part in (OTHER, *deeper):
        with pytest.raises(ValueError, match=keyword):
            translate(KNOWN, part)
    if not is_nested:
        with pytest.raises(ValueError, match=f"{keyword} declares fields that are not in prop"):
            translate({"$ref": "#/definitions/Other"})


def test_value_may_not_have_fields_of_any_name() -> None:
    with pytest.raises(ValueError, match=r"\$: patternProperties declares fields"):
        columns({"a": {"type": "string"}}, patternProperties={"^x": {"type": "string"}})
