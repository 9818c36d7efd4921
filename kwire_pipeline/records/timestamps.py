"""JSON fields that Spark would misread without an error: times, DATE and TINYINT.

Spark reads a whole number in a TIMESTAMP field as seconds, so milliseconds would end up in the year
57,000. Here a TIMESTAMP field is first read as text (`parsed_type`) and then converted by its unit
(`convert`); text that cannot be read in its unit becomes null, and `unread` finds it. Spark reads
bare digits in a DATE field as days since 1970, so "20261101" would be in the year 57,000, and in a
TIMESTAMP_NTZ field as a year, so "202611" would be in the year 202,611; these fields are therefore
also read as text.

Spark's JSON parser reads 128 to 255 in a TINYINT field as unsigned bytes and turns them into -128
to -1. So such a field is read as SMALLINT, and `unread` finds values that are out of range.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kwire_pipeline.config.values import TimestampUnit
from kwire_pipeline.records import exponents

Units = Mapping[str, TimestampUnit]
"""The units by dotted field path from the top; ISO 8601 for all other fields."""

MICROS_PER: Final = {
    TimestampUnit.SECONDS: 1_000_000,
    TimestampUnit.MILLIS: 1000,
    TimestampUnit.MICROS: 1,
}
FIRST_MICROS: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z."""
LAST_MICROS: Final = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z."""


LOCAL: Final = r"^\s*[+-]?\d+-\d{1,2}(-\d{1,2}([ T][\d:.]*)?)?\s*$"
"""The form of a date, perhaps with a time, but without a time zone, which a cast would ignore."""


def unit_of(units: Units, path: str) -> TimestampUnit | None:
    """Return the unit that the file sets for a field, if any; names are compared as in Spark."""
    return {name.lower(): unit for name, unit in units.items()}.get(path.lower())


def parsed_type(kind: DataType) -> DataType:
    """Return the type to parse: STRING for times, SMALLINT for TINYINT, nulls allowed."""
    match kind:
        case StructType():
            return StructType(
                [StructField(f.name, parsed_type(f.dataType), True) for f in kind.fields]
            )
        case ArrayType():
            return ArrayType(parsed_type(kind.elementType), True)
        case MapType():
            return MapType(parsed_type(kind.keyType), parsed_type(kind.valueType), True)
        case TimestampType() | TimestampNTZType() | DateType():
            return StringType()
        case ByteType():
            return ShortType()
    return kind


def has_conversion(kind: DataType) -> bool:
    """Return whether a type is or contains a type to convert to, ignoring map keys."""
    match kind:
        case StructType():
            return any(has_conversion(field.dataType) for field in kind.fields)
        case ArrayType():
            return has_conversion(kind.elementType)
        case MapType():
            return has_conversion(kind.valueType)
    return isinstance(kind, TimestampType | TimestampNTZType | DateType | ByteType)


def convert(column: Column, kind: DataType, units: Units, path: str) -> Column:
    """Convert a value from its `parsed_type` to its own type."""
    if not has_conversion(kind):
        return column
    match kind:
        case StructType():
            fields = [
                convert(column.getField(f.name), f.dataType, units, f"{path}.{f.name}").alias(
                    f.name
                )
                for f in kind.fields
            ]
            return F.when(column.isNotNull(), F.struct(*fields))
        case ArrayType():
            element = kind.elementType
            return F.transform(column, lambda item: convert(item, element, units, path))
        case MapType():
            value = kind.valueType
            return F.transform_values(column, lambda _, item: convert(item, value, units, path))
        case ByteType():
            return F.when(_is_tiny(column), column.cast("tinyint"))
        case DateType():
            return day(column)
        case TimestampNTZType():
            return local_moment(column)
    return moment(column, unit_of(units, path) or TimestampUnit.ISO)


def _is_tiny(number: Column) -> Column:
    return number.between(-128, 127)


def moment(text: Column, unit: TimestampUnit) -> Column:
    """Return the time that a text denotes in a unit; null if it denotes none."""
    if unit is TimestampUnit.ISO:
        return F.when(_has_date(text), text.try_cast("timestamp"))
    number = exponents.moderate(text).try_cast("decimal(28,6)")
    micros = (number * F.lit(Decimal(MICROS_PER[unit]))).try_cast("bigint")
    in_range = micros.between(FIRST_MICROS, LAST_MICROS)
    return F.when(in_range, F.timestamp_micros(micros))


def _has_date(text: Column) -> Column:
    """Return the condition that a text begins with a date.

    Spark reads a bare number as a year, and a bare time, such as 10:00:00-05:00, as a time on the
    day of reading.
    """
    hyphen, colon = F.instr(text, "-"), F.instr(text, ":")
    return (hyphen > 1) & ((colon == 0) | (hyphen < colon))


def day(text: Column) -> Column:
    """Return the date that a text denotes; null if it denotes none, as for a bare number."""
    return F.when(F.instr(text, "-") > 1, text.try_cast("date"))


def local_moment(text: Column) -> Column:
    """Return the time that a text denotes in no time zone; null if it denotes none."""
    return F.when(text.rlike(LOCAL), text.try_cast("timestamp_ntz"))


def unread(column: Column, kind: DataType, units: Units, path: str) -> Column | None:
    """Return the condition that part of a value cannot be converted; None if nothing needs it."""
    if not has_conversion(kind):
        return None
    match kind:
        case StructType():
            parts = [
                unread(column.getField(f.name), f.dataType, units, f"{path}.{f.name}")
                for f in kind.fields
            ]
            return any_of([part for part in parts if part is not None])
        case ArrayType():
            element = kind.elementType
            return F.exists(column, lambda item: _unread(item, element, units, path))
        case MapType():
            value = kind.valueType
            return F.exists(F.map_values(column), lambda item: _unread(item, value, units, path))
        case ByteType():
            return ~_is_tiny(column)
        case DateType():
            return column.isNotNull() & day(column).isNull()
        case TimestampNTZType():
            return column.isNotNull() & local_moment(column).isNull()
    return column.isNotNull() & moment(column, unit_of(units, path) or TimestampUnit.ISO).isNull()


def _unread(column: Column, kind: DataType, units: Units, path: str) -> Column:
    condition = unread(column, kind, units, path)
    return F.lit(False) if condition is None else condition


def any_of(conditions: list[Column]) -> Column:
    """Return the condition that at least one condition is true; null is treated as false."""
    whole = F.lit(False)
    for condition in conditions:
        whole = whole | F.coalesce(condition, F.lit(False))
    return whole
