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
from kwire_pipeline.engine.schema import check, difference, parse_ddl, sql_column
from kwire_pipeline.errors import Refusal

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
