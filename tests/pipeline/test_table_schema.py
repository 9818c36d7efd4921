"""The rows' schema against the table's."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kwire_pipeline.config.values import Evolution
from kwire_pipeline.engine.schema import (
    check,
    difference,
    in_types_of,
    parse_ddl,
    sql_column,
    with_fields,
)
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.iceberg import IcebergTable
from kwire_pipeline.tables.table import LETTERS

TABLE = StructType(
    [
        StructField("id", LongType()),
        StructField("n", IntegerType()),
        StructField("price", FloatType()),
        StructField("old", StringType()),
    ]
)


def rows(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def test_same_narrower_and_absent_columns_need_no_change() -> None:
    assert not difference(TABLE, rows(ID=LongType(), price=FloatType()))
    assert not difference(TABLE, rows(id=IntegerType()))


@pytest.mark.parametrize("ddl", ["n INTT", "n DECIMAL(50, 2)"])
def test_wrong_columns_are_refused(spark: SparkSession, ddl: str) -> None:
    with pytest.raises(Refusal, match=r"^value\.schema is not a list of columns: "):
        parse_ddl(ddl, "value.schema")


def test_changes_are_allowed_by_name() -> None:
    changes = difference(TABLE, rows(n=LongType(), price=DoubleType(), city=StringType()))
    assert changes.words() == ["add city string", "widen n to bigint", "widen price to double"]
    check(changes, Evolution.WIDEN, "t")
    with pytest.raises(Refusal, match="lacks wider columns of the schema \\(n, price\\)"):
        check(changes, Evolution.ADDITIVE, "t")
    added = difference(TABLE, rows(city=StringType()))
    check(added, Evolution.ADDITIVE, "t")
    with pytest.raises(Refusal, match=r"table\.evolution to additive"):
        check(added, Evolution.FREEZE, "t")


def with_structs(**types: DataType) -> DataType:
    """Return rows in all kinds of nesting: a struct, in an array, and in a map."""
    part = rows(**types)
    return rows(part=part, parts=ArrayType(part), by_name=MapType(StringType(), part))


def test_fields_of_structs_in_any_nesting_are_added_and_widened() -> None:
    """Fields that the rows lack stay, and narrower ones fit."""
    table = rows(a=with_structs(id=LongType(), n=IntegerType(), old=StringType()))
    changes = difference(
        table, rows(a=with_structs(ID=IntegerType(), n=LongType(), city=StringType()))
    )
    places = ("part", "parts.element", "by_name.value")
    assert changes.words() == [
        *(f"add a.{place}.city string" for place in places),
        *(f"widen a.{place}.n to bigint" for place in places),
    ]
    with pytest.raises(
        Refusal, match=r"lacks new columns of the schema \(a\.part\.city, a\.parts\."
    ):
        check(difference(table, rows(a=with_structs(city=StringType()))), Evolution.FREEZE, "t")
    changes = difference(table, rows(a=with_structs(id=StringType())))
    assert changes.conflicts[0] == "a.part.id is bigint in the table and string in the rows"


def test_rows_get_the_types_of_a_table_with_more_fields(spark: SparkSession) -> None:
    part = "struct<n: int, `a.b`: string>"
    own = parse_ddl(
        f"A struct<id: int, part: {part}, parts: array<{part}>, by_name: map<string, {part}>>",
        "rows",
    )
    whole = (1, (2, "x"), [(3, None), None], {"k": (4, "y")})
    frame = spark.createDataFrame([(whole,), ((5, None, None, None),), (None,)], own)
    part = "struct<old: string, `A.b`: string, n: bigint>"
    kind = parse_ddl(
        f"a struct<parts: array<{part}>, by_name: map<string, {part}>, part: {part}, id: bigint>, "
        "b int",
        "table",
    )
    fitted = frame.select(*in_types_of(frame.schema, kind))
    assert fitted.columns == ["a", "b"]
    assert fitted.schema["a"].dataType.simpleString() == kind["a"].dataType.simpleString()
    first, second, third = (row.a and row.a.asDict(recursive=True) for row in fitted.collect())
    assert first == {
        "id": 1,
        "part": {"old": None, "A.b": "x", "n": 2},
        "parts": [{"old": None, "A.b": None, "n": 3}, None],
        "by_name": {"k": {"old": None, "A.b": "y", "n": 4}},
    }
    assert second == {"id": 5, "part": None, "parts": None, "by_name": None}
    assert third is None


def test_nested_fields_are_added_to_the_type_of_a_folder() -> None:
    table = rows(a=with_structs(id=LongType()))
    grown = with_fields(
        table, difference(table, rows(b=LongType(), a=with_structs(n=LongType()))).added
    )
    assert grown == rows(a=with_structs(id=LongType(), n=LongType()), b=LongType())


def test_another_type_is_refused_under_any_evolution() -> None:
    changes = difference(TABLE, rows(id=StringType()))
    with pytest.raises(Refusal, match="id is bigint in the table and string in the rows"):
        check(changes, Evolution.WIDEN, "t")


def test_names_of_nested_fields_may_contain_any_sign(spark: SparkSession) -> None:
    """Spark parses the column's SQL to the same column; its own text it does not."""
    inner = StructType([StructField("unit-price", LongType()), StructField("a`b.c", StringType())])
    kind = StructType([StructField("the parts", ArrayType(MapType(StringType(), inner)))])
    (column,) = parse_ddl(sql_column(StructField("order-no", kind)), "sql").fields
    assert column == StructField("order-no", kind)


@pytest.mark.parametrize(
    "ddl", ["id BIGINT", "id BIGINT, name STRUCT<a: INT>", "id INT, name STRING"]
)
def test_rows_are_not_cut_to_a_table_that_was_changed_during_the_run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, ddl: str
) -> None:
    monkeypatch.setattr(IcebergTable, "columns", lambda _: parse_ddl(ddl, "table"))
    table = IcebergTable(spark, "kwire.shop.orders", LETTERS)
    rows = spark.createDataFrame([(1, "a")], "id BIGINT, name STRING")
    with pytest.raises(Refusal, match="was changed during the run"):
        table.add(rows)
