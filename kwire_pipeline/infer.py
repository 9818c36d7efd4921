"""The schema of JSON records, inferred from a sample of them, as Spark's DDL.

Rules of this file: records that are not a single object are left out, and so are types that are
rare in their column. A column whose values have incompatible types is a STRING. Every field may be
null, because a sample proves nothing about the other records.
"""

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Shape: TypeAlias = "str | ListShape | Mapping[str, Shape] | None"
"""A type: its name, a list's item type, or a struct's fields; None if only null was seen."""
ListShape: TypeAlias = "tuple[Shape]"

TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
LONG: Final = 1 << 63
RARE: Final = 20
"""A kind of value is taken for damage if fewer than one value in twenty has it."""


def infer_ddl(values: Iterable[bytes | None]) -> str | None:
    """Return the columns of the objects among some values; None if there is no object."""
    columns: dict[str, list[Shape]] = {}
    names: dict[str, str] = {}
    for value in values:
        try:
            parsed: Json = json.loads(value or b"")
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            for name, shape in fields_of(parsed).items():
                columns.setdefault(names.setdefault(name.lower(), name), []).append(shape)
    types = [f"{_quote(name)} {ddl(common(shapes))}" for name, shapes in columns.items()]
    return ", ".join(types) or None


def common(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of a column; kinds of values that are rare in it are taken for damage."""
    kinds = Counter(kind(shape) for shape in shapes if shape is not None)
    merged: Shape = None
    for shape in shapes:
        if shape is not None and kinds[kind(shape)] * RARE >= kinds.total():
            merged = merge(merged, shape)
    return merged


def kind(shape: Shape) -> str:
    """Return the kind of a shape: all numbers are one kind, and so are all structs."""
    if isinstance(shape, str):
        return "number" if shape in ("BIGINT", "DOUBLE") else shape
    return type(shape).__name__


def fields_of(value: dict[str, Json]) -> dict[str, Shape]:
    """Return the shape of each field of an object."""
    return {name: shape_of(item) for name, item in value.items()}


def shape_of(value: Json) -> Shape:
    match value:
        case None:
            return None
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -LONG <= value < LONG else "DOUBLE"
        case float():
            return "DOUBLE"
        case str():
            return "TIMESTAMP" if is_time(value) else "STRING"
        case dict():
            return fields_of(value)
    items: Shape = None
    for item in value:
        items = merge(items, shape_of(item))
    return (items,)


def is_time(text: str) -> bool:
    """Return whether a text is a time in ISO 8601."""
    if not TIME.fullmatch(text):
        return False
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def merge(first: Shape, second: Shape) -> Shape:
    """Return the shape of values of both shapes."""
    if first is None or first == second:
        return second
    if second is None:
        return first
    if {"BIGINT", "DOUBLE"} == {str(first), str(second)}:
        return "DOUBLE"
    if isinstance(first, tuple) and isinstance(second, tuple):
        return (merge(first[0], second[0]),)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return merge_fields(first, second)
    return "STRING"


def merge_fields(first: Mapping[str, Shape], second: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the fields of both; Spark compares names ignoring case."""
    merged = dict(first)
    names = {name.lower(): name for name in first}
    for name, shape in second.items():
        known_name = names.setdefault(name.lower(), name)
        merged[known_name] = merge(merged.get(known_name), shape)
    return merged


def ddl(shape: Shape) -> str:
    """Return a type in Spark's DDL; a type of only nulls becomes STRING."""
    if shape is None:
        return "STRING"
    if isinstance(shape, str):
        return shape
    if isinstance(shape, tuple):
        return f"ARRAY<{ddl(shape[0])}>"
    fields = ", ".join(f"{_quote(name)}: {ddl(field)}" for name, field in shape.items())
    return f"STRUCT<{fields}>" if fields else "STRING"


def _quote(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name.replace('`', '``')}`"
