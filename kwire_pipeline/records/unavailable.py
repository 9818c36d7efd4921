"""Values that a change record leaves out because they did not change.

Postgres does not send an unchanged large value (TOAST). Debezium sends a placeholder instead: a
text, converted to the type of the column. The row then keeps its value: the last one in the batch,
otherwise the table's.

A column that is an expression over such a value, such as its hash, keeps the row's value as well.

Rules of this file: pure functions of columns.
"""

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyspark.sql import Column, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
)

from kwire_pipeline.records.timestamps import any_of

KEEPS: Final = "__keeps_"
"""The prefix of a column that is true if the table's column with the rest of the name is kept."""
READS: Final = "__reads_"
"""The prefix of a column that is true if an expression, which has the rest of the name, has read a
placeholder.
"""
WORD: Final = re.compile(r"`([^`]+)`|(\w+)")


def placeholders(kind: DataType, text: str) -> Iterator[Column]:
    """Yield the forms of the placeholder in a column of a type; nothing if the type has none."""
    whole, data = F.lit(text), F.lit(text.encode())
    match kind:
        case StringType():
            yield whole
        case BinaryType():
            yield data
        case ArrayType(elementType=StringType()):
            digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
            yield F.array(whole)
            yield F.array(F.lit(str(uuid.UUID(bytes=digest, version=3))))
        case ArrayType(elementType=BinaryType()):
            yield F.array(data)
        case ArrayType(elementType=ShortType() | IntegerType() | LongType() as number):
            signed = memoryview(text.encode()).cast("b")
            yield F.array(*[F.lit(value).cast(number) for value in signed])


def is_unavailable(column: Column, kind: DataType, text: str) -> Column | None:
    """Return the condition that a value is a placeholder; None if its type has none."""
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType) or not isinstance(kind.valueType, StringType):
            return None
        return (F.size(column) == 1) & F.equal_null(column.getItem(text), F.lit(text))
    forms = [F.equal_null(column, form) for form in placeholders(kind, text)]
    if not forms:
        return None
    condition, *others = forms
    for other in others:
        condition |= other
    return condition


def is_read(sql: str, kinds: Mapping[str, DataType], text: str) -> Column:
    """Return the condition that an expression reads a placeholder.

    ``kinds`` has the types of columns that may have one. A column counts as read if its name is in
    the expression; at worst, a value is then kept that another column would have changed.
    """
    words = {word.lower() for pair in WORD.findall(sql) for word in pair}
    read = {name: kind for name, kind in kinds.items() if name.lower() in words}
    conditions = (is_unavailable(F.col(f"`{name}`"), kind, text) for name, kind in read.items())
    return any_of([condition for condition in conditions if condition is not None])


def resolve(
    fields: Iterable[StructField], text: str, latest_first: WindowSpec
) -> dict[str, Column]:
    """Return the columns that can have a placeholder, which is replaced by the batch's last value.

    If there is no such value, the column is null, and the column with the prefix `KEEPS` is true.
    """
    every = latest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    columns: dict[str, Column] = {}
    by_name = {field.name: field for field in fields}
    for field in by_name.values():
        column = F.col(f"`{field.name}`")
        condition = is_unavailable(column, field.dataType, text)
        if (flag := f"{READS}{field.name}") in by_name:
            condition = F.col(f"`{flag}`")
        if condition is None or field.name.startswith(READS):
            continue
        # A struct, because null is a value as well.
        value = F.when(~F.coalesce(condition, F.lit(False)), F.struct(column.alias("value")))
        last = F.first(value, ignorenulls=True).over(every)
        columns[field.name] = last.getField("value")
        columns[f"{KEEPS}{field.name}"] = last.isNull()
    return columns
