"""The rows' schema and the table's: their differences, and rows in the types of the table.

Rules of this file: fields are compared by name, ignoring case, at the top and in structs, arrays
and maps.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
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
class Place:
    """A column, or a field in one, and a type for it."""

    path: tuple[str, ...]
    """The names from the top; the parts of arrays and maps are ``element`` and ``value``."""
    type: DataType

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def sql_name(self) -> str:
        return ".".join(map(_quote, self.path))

    @property
    def sql(self) -> str:
        """The name and type as SQL."""
        return f"{self.sql_name} {sql_type(self.type)}"


@attrs.define
class Difference:
    """The changes that a table needs in order to accept the rows."""

    added: list[Place] = attrs.field(factory=list)
    widened: list[Place] = attrs.field(factory=list)
    """The columns and fields to widen, each with its new type."""
    conflicts: list[str] = attrs.field(factory=list)
    """The columns and fields whose type cannot be changed, each with a description."""

    def __bool__(self) -> bool:
        return bool(self.added or self.widened or self.conflicts)

    def words(self) -> list[str]:
        """Return a line for each change."""
        return [
            *(f"add {place.name} {place.type.simpleString()}" for place in self.added),
            *(f"widen {place.name} to {place.type.simpleString()}" for place in self.widened),
            *self.conflicts,
        ]

    def compare(self, path: tuple[str, ...], own: DataType, other: DataType) -> None:
        """Add what the table's type at a place lacks for values of another type."""
        match own, other:
            case StructType(), StructType():
                names = _by_lower_name(own)
                for field in other.fields:
                    former = names.get(field.name.lower())
                    if former is None:
                        self.added.append(Place((*path, field.name), field.dataType))
                    else:
                        self.compare((*path, former.name), former.dataType, field.dataType)
            case ArrayType(), ArrayType():
                self.compare((*path, "element"), own.elementType, other.elementType)
            case MapType(), MapType() if own.keyType == other.keyType:
                self.compare((*path, "value"), own.valueType, other.valueType)
            case _ if is_same(own, other) or _narrower(other, own):
                pass
            case _ if _narrower(own, other):
                self.widened.append(Place(path, other))
            case _:
                self.conflicts.append(
                    f"{'.'.join(path)} is {own.simpleString()} in the table and "
                    f"{other.simpleString()} in the rows"
                )


def difference(table: StructType, rows: StructType) -> Difference:
    """Compare two schemas; columns and fields that are missing in ``rows`` will be null."""
    changes = Difference()
    changes.compare((), table, rows)
    return changes


def in_types_of(rows: StructType, table: StructType) -> Iterator[Column]:
    """Yield the table's columns for rows, which may lack some of them."""
    names = _by_lower_name(rows)
    for field in table.fields:
        own = names.get(field.name.lower())
        if own is None:
            yield F.lit(None).cast(field.dataType).alias(field.name)
        else:
            column = F.col(_quote(own.name))
            yield _in_type(column, own.dataType, field.dataType).alias(field.name)


def _in_type(column: Column, own: DataType, table: DataType) -> Column:
    """Return a value in the table's type, with its fields by name; Spark's cast counts them."""
    if is_same(own, table):
        return column
    match own, table:
        case StructType(), StructType():
            names = _by_lower_name(own)
            fields = []
            for field in table.fields:
                former = names.get(field.name.lower())
                if former is None:
                    value = F.lit(None).cast(field.dataType)
                else:
                    inner = column.getField(former.name)
                    value = _in_type(inner, former.dataType, field.dataType)
                fields.append(value.alias(field.name))
            return F.when(column.isNotNull(), F.struct(*fields))
        case ArrayType(), ArrayType():
            kinds = own.elementType, table.elementType
            return F.transform(column, lambda item: _in_type(item, *kinds))
        case MapType(), MapType():
            types = own.valueType, table.valueType
            return F.transform_values(column, lambda _, value: _in_type(value, *types))
    return column.cast(table)


def with_fields(table: StructType, added: Iterable[Place]) -> StructType:
    """Return a table's columns with the added ones."""
    kind: DataType = table
    for place in added:
        kind = _with_field(kind, place.path, place.type)
    assert isinstance(kind, StructType)
    return kind


def _with_field(kind: DataType, path: Sequence[str], type_: DataType) -> DataType:
    match kind:
        case ArrayType():
            return ArrayType(_with_field(kind.elementType, path[1:], type_), kind.containsNull)
        case MapType():
            value = _with_field(kind.valueType, path[1:], type_)
            return MapType(kind.keyType, value, kind.valueContainsNull)
        case StructType() if len(path) > 1:
            return StructType(
                [
                    StructField(f.name, _with_field(f.dataType, path[1:], type_), f.nullable)
                    if f.name == path[0]
                    else f
                    for f in kind.fields
                ]
            )
        case StructType():
            return StructType([*kind.fields, StructField(path[0], type_)])
    raise ValueError(f"{kind.simpleString()} has no fields")


def _by_lower_name(kind: StructType) -> dict[str, StructField]:
    return {field.name.lower(): field for field in kind.fields}


def check(changes: Difference, evolution: Evolution, table: str) -> None:
    """Raise Refusal unless the configured evolution allows all changes."""
    if changes.conflicts:
        raise Refusal(f"{table}: {'; '.join(changes.conflicts)}: correct the schema")
    if changes.widened and evolution is not Evolution.WIDEN:
        _refuse(changes.widened, "wider", "widen", table)
    if changes.added and evolution is Evolution.FREEZE:
        _refuse(changes.added, "new", "additive", table)


def check_fits(table: StructType, rows: StructType, name: str) -> None:
    """Raise Refusal if a table cannot hold rows, although it could when their run began."""
    if changes := difference(table, rows):
        raise Refusal(
            f"{name} was changed during the run and no longer takes its rows "
            f"({'; '.join(changes.words())}): undo that, or run again"
        )


def _refuse(places: Sequence[Place], adjective: str, evolution: str, table: str) -> None:
    names = ", ".join(place.name for place in places)
    raise Refusal(
        f"{table} lacks {adjective} columns of the schema ({names}): set table.evolution to "
        f"{evolution}, or change the table yourself"
    )


def is_same(type_: DataType, other: DataType) -> bool:
    """Return whether two types differ at most in which values may be null."""
    return type_.simpleString() == other.simpleString()


def _narrower(type_: DataType, other: DataType) -> bool:
    return other.simpleString() in WIDER.get(type_.simpleString(), ())
