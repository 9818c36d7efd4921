"""The fields of a JSON object that its schema does not declare, at any depth, as JSON text.

They keep their place: a field below a struct is inside an object of the struct's name, and an array
or map of structs has one entry for each element that has such a field; an array has null for its
other elements. The declared fields are in columns, so they are left out.

Rules of this file: the object arrives as a VARIANT, which keeps numbers, strings and booleans
apart; if a name occurs twice, the last value is used (`engine/query.py` sets that for variants).
"""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def json_rest(value: Column, schema: StructType) -> Column:
    """Return the undeclared fields of a variant as JSON text; null if there are none."""
    return F.to_json(_fields(value, schema))


def _rest(value: Column, kind: DataType) -> Column | None:
    """Return the undeclared part of a variant, or null; None for a type without structs."""
    match kind:
        case StructType():
            return _fields(value, kind)
        case ArrayType():
            return _elements(value, kind.elementType)
        case MapType():
            return _values(value, kind.valueType)
    return None


def _fields(value: Column, schema: StructType) -> Column:
    entries = F.try_variant_get(value, "$", "map<string,variant>")
    names = [field.name for field in schema.fields]
    rest = F.map_filter(entries, lambda name, _: ~name.isin(names))
    parts = [(f.name, _rest(F.try_element_at(entries, F.lit(f.name)), f.dataType)) for f in schema]
    inner = [(F.lit(name), part) for name, part in parts if part is not None]
    if inner:
        keys, values = (F.array(*columns) for columns in zip(*inner, strict=True))
        below = F.map_filter(F.map_from_arrays(keys, values), lambda _, part: part.isNotNull())
        rest = F.map_concat(rest, below)
    return F.when(F.size(rest) > 0, F.to_variant_object(rest))


def _elements(value: Column, kind: DataType) -> Column | None:
    if _rest(value, kind) is None:
        return None

    def rest_of(item: Column) -> Column:
        rest = _rest(item, kind)
        return item if rest is None else rest

    elements = F.transform(F.try_variant_get(value, "$", "array<variant>"), rest_of)
    has_any = F.exists(elements, lambda item: item.isNotNull())
    return F.when(has_any, F.to_variant_object(elements))


def _values(value: Column, kind: DataType) -> Column | None:
    if _rest(value, kind) is None:
        return None

    def rest_of(_: Column, item: Column) -> Column:
        rest = _rest(item, kind)
        return item if rest is None else rest

    entries = F.transform_values(F.try_variant_get(value, "$", "map<string,variant>"), rest_of)
    rest = F.map_filter(entries, lambda _, item: item.isNotNull())
    return F.when(F.size(rest) > 0, F.to_variant_object(rest))
