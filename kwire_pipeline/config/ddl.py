"""Spark's DDL for columns, parsed without Spark: ``id BIGINT NOT NULL, tags ARRAY<STRING>``.

So a wrong schema, or a column missing in it, is reported at once instead of after a JVM has
started; Spark parses the same text again before it is used. Names are compared ignoring case, as in
Spark.
"""

import re
from collections.abc import Sequence
from typing import Final

import attrs

SIMPLE: Final = frozenset(
    {
        *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
        *("FLOAT", "REAL", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
        *("STRING", "BINARY", "DECIMAL", "DEC", "NUMERIC", "VARIANT", "VOID", "TIME"),
    }
)
SIZED: Final = frozenset({"DECIMAL", "DEC", "NUMERIC", "TIME", "TIMESTAMP"})
"""The types that may have numbers in parentheses."""
TEXTS: Final = frozenset({"CHAR", "CHARACTER", "VARCHAR"})
"""The types that Spark allows in tables but cannot read from JSON."""
TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<sign>[<>(),:]))"
)


@attrs.frozen
class Type:
    """The type of a column."""

    name: str
    """In upper case: STRING, ARRAY, MAP, STRUCT."""
    items: tuple["Type", ...] = ()
    """An array's element; a map's key and value."""
    fields: tuple["Field", ...] = ()
    """The fields of a struct."""


@attrs.frozen
class Field:
    """A column of a schema, or a field of a struct."""

    name: str
    type: Type
    nullable: bool = True


def parse_ddl(text: str) -> tuple[Field, ...]:
    """Return the columns of a schema; raise ValueError that shows where an error is."""
    tokens = _Tokens(text)
    fields = _fields(tokens, end="")
    if not fields:
        raise ValueError("expected columns such as id BIGINT NOT NULL, name STRING")
    return fields


def find_field(fields: Sequence[Field], path: Sequence[str]) -> Field | None:
    """Return the field at a path through structs, and through arrays of structs."""
    head, *rest = path
    for field in fields:
        if field.name.lower() == head.lower():
            inner = field.type
            while inner.name == "ARRAY":
                inner = inner.items[0]
            return find_field(inner.fields, rest) if rest else field
    return None


class _Tokens:
    """The words and signs of a text, in order."""

    def __init__(self, text: str) -> None:
        self.text = text.rstrip()
        self.position = 0

    def peek(self) -> str:
        """Return the next token; empty at the end."""
        if self.position >= len(self.text):
            return ""
        match = TOKEN.match(self.text, self.position)
        if match is None:
            raise ValueError(f"{self.text[self.position :].split()[0]!r} is not expected here")
        return match[0].strip()

    def take(self) -> str:
        token = self.peek()
        match = TOKEN.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return token

    def take_if(self, *tokens: str) -> bool:
        """Take the next token if it is one of these words, ignoring case."""
        is_next = self.peek().upper() in tokens
        if is_next:
            self.take()
        return is_next

    def expect(self, sign: str) -> None:
        token = self.take()
        if token != sign:
            raise ValueError(
                f"expected {sign!r}, not {token!r}" if token else f"{sign!r} is missing"
            )


def _fields(tokens: _Tokens, end: str) -> tuple[Field, ...]:
    """Parse fields up to ``end``, which is not taken."""
    fields: list[Field] = []
    while tokens.peek() != end:
        if fields:
            tokens.expect(",")
        field = _field(tokens)
        if find_field(fields, [field.name]) is not None:
            raise ValueError(f"{field.name} appears twice")
        fields.append(field)
    return tuple(fields)


def _field(tokens: _Tokens) -> Field:
    name = tokens.take()
    if not re.match(r"[\w`]", name):
        raise ValueError(
            f"expected a column's name, not {name!r}" if name else "a column is missing"
        )
    if name.startswith("`"):
        name = name[1:-1].replace("``", "`")
    tokens.take_if(":")
    try:
        kind = _type(tokens)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    nullable = not tokens.take_if("NOT")
    if not nullable and not tokens.take_if("NULL"):
        raise ValueError(f"{name}: expected NULL after NOT")
    if tokens.take_if("COMMENT") and tokens.take()[:1] not in ("'", '"'):
        raise ValueError(f"{name}: expected a quoted text after COMMENT")
    return Field(name, kind, nullable)


def _type(tokens: _Tokens) -> Type:
    token = tokens.take()
    name = token.upper()
    if name == "STRUCT":
        tokens.expect("<")
        fields = _fields(tokens, end=">")
        tokens.expect(">")
        return Type(name, fields=fields)
    if name in ("ARRAY", "MAP"):
        tokens.expect("<")
        items = [_type(tokens)]
        if name == "MAP":
            tokens.expect(",")
            items.append(_type(tokens))
            if items[0].name != "STRING":
                raise ValueError("keys in JSON are strings; expected MAP<STRING, ...>")
        tokens.expect(">")
        return Type(name, items=tuple(items))
    if name in TEXTS:
        raise ValueError(f"expected STRING, not {name}")
    if name not in SIMPLE:
        raise ValueError(f"there is no type {token}" if token else "its type is missing")
    if name in SIZED and tokens.take_if("("):
        while not tokens.take_if(")"):
            number = tokens.take()
            if not number.isdigit():
                raise ValueError(f"expected a number in {name}(...)")
            tokens.take_if(",")
    return Type(name)
