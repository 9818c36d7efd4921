"""NOT NULL at any depth of a schema, as a condition on a parsed value."""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from kwire_pipeline.records.timestamps import any_of


def lacks_required(column: Column, kind: DataType) -> Column | None:
    """Return the condition that a required part of a value is null; None if none is required.

    A null struct, array or map lacks nothing: its own nullability is checked separately.
    """
    match kind:
        case StructType():
            parts = [lacks_field(column, field) for field in kind.fields]
            conditions = [part for part in parts if part is not None]
            return column.isNotNull() & any_of(conditions) if conditions else None
        case ArrayType():
            return _lacks_element(column, kind.elementType, kind.containsNull)
        case MapType():
            return _lacks_element(F.map_values(column), kind.valueType, kind.valueContainsNull)
    return None


def lacks_field(parent: Column, field: StructField) -> Column | None:
    """Return the condition that a struct lacks a field, or a required part of the field."""
    column = parent.getField(field.name)
    inner = lacks_required(column, field.dataType)
    if field.nullable:
        return inner
    return column.isNull() if inner is None else column.isNull() | inner


def _lacks_element(elements: Column, kind: DataType, may_be_null: bool) -> Column | None:
    if may_be_null and lacks_required(F.lit(None), kind) is None:
        return None

    def lacks(item: Column) -> Column:
        inner = lacks_required(item, kind)
        conditions = [] if may_be_null else [item.isNull()]
        return any_of([*conditions, *([] if inner is None else [inner])])

    return F.exists(elements, lacks)
