"""The comparison of the rows' schema with the table's. Plain data only."""

from collections.abc import Sequence
from typing import Final

import attrs
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from kwire_pipeline.config.values import Evolution
from kwire_pipeline.errors import Refusal

WIDER: Final = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
"""For each column type, the types to which it can be widened without loss."""


def parse_ddl(ddl: str, key: str) -> StructType:
    """Parse a list of columns; raise Refusal if it is invalid."""
    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        raise Refusal(f"{key} is not a list of columns: {reason}") from None
    if not isinstance(schema, StructType):
        raise Refusal(f"{key}: expected columns such as 'id STRING NOT NULL, n INT', not a type")
    return schema


def sql_column(field: StructField) -> str:
    """Return a column's name and type as SQL; the name may contain any character."""
    return f"{_quote(field.name)} {sql_type(field.dataType)}"


def sql_type(kind: DataType) -> str:
    """Return a type as SQL. Spark's own text for it does not quote the names of fields."""
    match kind:
        case StructType():
            fields = (f"{_quote(f.name)}: {sql_type(f.dataType)}" for f in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{sql_type(kind.elementType)}>"
        case MapType():
            return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString()


def _quote(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


@attrs.frozen
class Difference:
    """The changes that a table needs in order to accept the rows."""

    added: tuple[StructField, ...] = ()
    widened: tuple[StructField, ...] = ()
    """The columns to widen, each with its new type."""
    conflicts: tuple[str, ...] = ()
    """The columns whose type cannot be changed, each with a description."""

    def __bool__(self) -> bool:
        return bool(self.added or self.widened or self.conflicts)

    def words(self) -> list[str]:
        """Return a line for each change."""
        return [
            *(f"add {field.name} {field.dataType.simpleString()}" for field in self.added),
            *(f"widen {field.name} to {field.dataType.simpleString()}" for field in self.widened),
            *self.conflicts,
        ]


def difference(table: StructType, rows: StructType) -> Difference:
    """Compare two schemas by name, ignoring case; columns missing in ``rows`` will be null."""
    columns = {field.name.lower(): field for field in table.fields}
    added, widened, conflicts = [], [], []
    for field in rows.fields:
        column = columns.get(field.name.lower())
        if column is None:
            added.append(field)
        elif _same(column.dataType, field.dataType) or _narrower(field.dataType, column.dataType):
            continue
        elif _narrower(column.dataType, field.dataType):
            widened.append(field)
        else:
            conflicts.append(
                f"{field.name} is {column.dataType.simpleString()} in the table and "
                f"{field.dataType.simpleString()} in the rows"
            )
    return Difference(tuple(added), tuple(widened), tuple(conflicts))


def check(changes: Difference, evolution: Evolution, table: str) -> None:
    """Raise Refusal unless the configured evolution allows all changes."""
    if changes.conflicts:
        raise Refusal(f"{table}: {'; '.join(changes.conflicts)}: correct the schema")
    if changes.widened and evolution is not Evolution.WIDEN:
        _refuse(changes.widened, "wider", "widen", table)
    if changes.added and evolution is Evolution.FREEZE:
        _refuse(changes.added, "new", "additive", table)


def _refuse(fields: Sequence[StructField], adjective: str, evolution: str, table: str) -> None:
    names = ", ".join(field.name for field in fields)
    raise Refusal(
        f"{table} lacks {adjective} columns of the schema ({names}): set table.evolution to "
        f"{evolution}, or change the table yourself"
    )


def _same(type_: DataType, other: DataType) -> bool:
    return type_.simpleString() == other.simpleString()


def _narrower(type_: DataType, other: DataType) -> bool:
    return other.simpleString() in WIDER.get(type_.simpleString(), ())
