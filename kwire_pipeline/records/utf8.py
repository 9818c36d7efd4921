"""Text that is not UTF-8 at any depth of a decoded value, as a condition.

Avro passes on the bytes of a text unchecked, and many readers of tables fail for a whole column if
one of its texts is damaged.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from kwire_pipeline.records.timestamps import any_of


def has_damaged_text(column: Column, kind: DataType) -> Column | None:
    """Return the condition that a part of a value is no UTF-8; None if no part is text."""
    match kind:
        case StringType():
            return ~F.is_valid_utf8(column)
        case StructType():
            parts = [has_damaged_text(column.getField(f.name), f.dataType) for f in kind.fields]
        case ArrayType():
            parts = [_has_damaged_item(column, kind.elementType)]
        case MapType():
            keys, values = F.map_keys(column), F.map_values(column)
            parts = [
                _has_damaged_item(keys, kind.keyType),
                _has_damaged_item(values, kind.valueType),
            ]
        case _:
            return None
    conditions = [part for part in parts if part is not None]
    return any_of(conditions) if conditions else None


def _has_damaged_item(items: Column, kind: DataType) -> Column | None:
    if has_damaged_text(F.lit(None), kind) is None:
        return None

    def is_damaged(item: Column) -> Column:
        condition = has_damaged_text(item, kind)
        return F.lit(False) if condition is None else condition

    return F.exists(items, is_damaged)
