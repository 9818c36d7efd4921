"""The transformations of records: pure functions from frame to frame, no session, no I/O.

A record fits when its value is JSON of the declared shape and has every NOT NULL field; any
other one is a dead letter, kept unchanged with the reason it does not fit. No record is dropped:
the two frames partition the input.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from kwire_pipeline.settings import Partition

UNREADABLE: Final = "_unreadable"
PARSED: Final = "_parsed"
ERROR: Final = "_error"

ORIGIN: Final = {
    "kafka_key": "CAST(key AS STRING)",
    "kafka_topic": "topic",
    "kafka_partition": "partition",
    "kafka_offset": "offset",
    "kafka_timestamp": "timestamp",
}
"""The origin columns of both tables and their SQL, so that rows can be checked with the topic."""


def schema_of(ddl: str) -> StructType:
    """Parse a list of columns; raise ParseException, also for a type that has no columns."""
    schema = StructType.fromDDL(ddl)
    if not isinstance(schema, StructType):
        raise ParseException(f"{ddl!r} is a type, not a list of columns such as 'id STRING, n INT'")
    return schema


def decode(raw: DataFrame, schema: StructType) -> DataFrame:
    """Add the parsed value, and the reason if the record does not fit, as columns."""
    lenient = StructType(
        [
            *(StructField(field.name, field.dataType, True) for field in schema.fields),
            StructField(UNREADABLE, StringType(), True),
        ]
    )
    text = F.col("value").cast("string")
    read = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNREADABLE}
    parsed = raw.withColumn(PARSED, F.from_json(text, lenient, read))
    return parsed.withColumn(ERROR, problem(text, schema))


def problem(text: Column, schema: StructType) -> Column:
    """Return the column with the reason why a record does not fit, null if it does."""
    parsed = F.col(PARSED)
    unreadable = [
        F.when(
            parsed[field.name].isNull() & is_given(text, field.name),
            F.lit(f"{field.name} is not {field.dataType.simpleString()}"),
        )
        for field in schema.fields
    ]
    missing = [
        F.when(parsed[field.name].isNull(), F.lit(f"{field.name} is missing"))
        for field in schema.fields
        if not field.nullable
    ]
    reasons = F.concat_ws("; ", *unreadable)
    return (
        F.when(text.isNull(), F.lit("the value is null"))
        .when(F.try_parse_json(text).isNull(), F.lit("not JSON"))
        .when(parsed.isNull(), F.lit("not a JSON object"))
        .when(
            parsed[UNREADABLE].isNotNull(),
            F.when(reasons != "", reasons).otherwise(F.lit("not of the declared shape")),
        )
        .when(F.concat_ws("; ", *missing) != "", F.concat_ws("; ", *missing))
    )


def is_given(text: Column, name: str) -> Column:
    """Whether the JSON object has a value other than null under ``name``."""
    return F.get_json_object(text, f"$['{name}']").isNotNull()


def rows(decoded: DataFrame, schema: StructType, partition_by: Sequence[Partition]) -> DataFrame:
    """Return the records that fit: declared fields, partition columns, origin."""
    fields = [F.col(f"{PARSED}.`{field.name}`").alias(field.name) for field in schema.fields]
    origin = [F.expr(expression).alias(name) for name, expression in ORIGIN.items()]
    fitting = decoded.where(F.col(ERROR).isNull()).select(*fields, *origin)
    for partition in partition_by:
        if partition.expression is not None:
            fitting = fitting.withColumn(partition.name, F.expr(partition.expression))
    return fitting


def dead_letters(decoded: DataFrame) -> DataFrame:
    """Return the records that do not fit: raw value, reason, origin."""
    origin = [F.expr(expression).alias(name) for name, expression in ORIGIN.items()]
    return decoded.where(F.col(ERROR).isNotNull()).select(
        F.col("value").alias("raw"), F.col(ERROR).alias("error"), *origin
    )
