"""A pipeline's rules applied to a sample of records, without brokers and tables.

The records become one batch; classification, expectations, the transform and the changes by key are
the same as in a run. The table is assumed to be empty.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Action, TableFormat
from kwire_pipeline.engine.batch import count
from kwire_pipeline.engine.by_key.upsert import all_changes, check_no_null, last_changes
from kwire_pipeline.engine.following import is_following, newest_of
from kwire_pipeline.engine.schemas import Schemas, classifying, schemas_of
from kwire_pipeline.engine.shape_and_tables import (
    RAW_DDL,
    Transform,
    rows_schema,
    shape_of,
    transform_of,
)
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import DELETES, Shape
from kwire_pipeline.records.unavailable import KEEPS
from kwire_pipeline.samples import Field, Json, Results, Sample

_CREATE_TIME: Final = 0
_LETTER_FIELDS: Final = ("topic", "partition", "offset", "reason", "key", "value")


def without_tables(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline for a local session, which needs no jars of a table format."""
    table = attrs.evolve(pipeline.table, format=TableFormat.PARQUET)
    spark = attrs.evolve(pipeline.spark, master="local[2]")
    return attrs.evolve(pipeline, table=table, spark=spark)


@attrs.frozen(kw_only=True)
class Trial:
    """A pipeline's rules, ready for samples."""

    spark: SparkSession
    shape: Shape
    transform: Transform | None
    schemas: Schemas | None

    @classmethod
    def prepare(cls, spark: SparkSession, pipeline: Pipeline, scratch: str) -> "Trial":
        """Check the rules; ``scratch`` is a folder for the registry's answers."""
        pipeline = newest_of(pipeline) if is_following(pipeline) else pipeline
        shape = shape_of(pipeline, pipeline.value.schema)
        transform = None if pipeline.transform is None else transform_of(pipeline.transform)
        rows_schema(spark, shape, transform)
        schemas = schemas_of(pipeline, Folder(spark, scratch), pipeline.name)
        return cls(spark=spark, shape=shape, transform=transform, schemas=schemas)

    def run(self, sample: Sample) -> Results:
        """Return the rows and dead letters that the records of a sample become."""
        raw = self.spark.createDataFrame(
            [
                (
                    *(record.key, record.value, record.topic, record.partition, record.offset),
                    *(record.timestamp, _CREATE_TIME, list(record.headers)),
                )
                for record in sample.records
            ],
            RAW_DDL,
        )
        with classifying(raw, self.shape, self.schemas) as (batch, shape):
            rows = self._rows(batch, shape)
            unmet = count(batch, shape).unmet
            return Results(
                rows=_rows_in_order(rows, shape),
                letters=[_letter(row.asDict()) for row in _letters(batch, shape).collect()],
                rejected=[
                    name
                    for name, (_, action) in shape.expectations.items()
                    if action is Action.FAIL and unmet[name]
                ],
                times=frozenset(_times(rows.schema)),
            )

    def _rows(self, batch: DataFrame, shape: Shape) -> DataFrame:
        transform = self.transform
        if not shape.changes.keys:
            rows = frames.rows(batch, shape)
            return rows if transform is None else transform(rows)
        changes = last_changes(all_changes(batch, shape, transform), shape)
        if transform is not None:
            check_no_null(changes, shape.changes)
        internal = [name for name in changes.columns if name.startswith(KEEPS)]
        return changes.where(~F.col(DELETES)).drop(DELETES, *internal)


def _rows_in_order(rows: DataFrame, shape: Shape) -> list[Mapping[str, Json]]:
    """Return the rows as JSON objects, in the order of their records."""
    whole = F.struct(*[F.col(f"`{name}`") for name in rows.columns])
    text = F.to_json(whole, {"ignoreNullFields": "false"}).alias("text")
    spot = [F.col(f"`{name}`") for name in shape.origin[:3]]
    return [_load(row.text) for row in rows.select(text, *spot).orderBy(*spot, "text").collect()]


def _load(text: str) -> Mapping[str, Json]:
    whole: Mapping[str, Json] = json.loads(text, parse_float=Decimal)
    return whole


def _letters(batch: DataFrame, shape: Shape) -> DataFrame:
    letters = frames.misfits(batch, shape)
    texts: list[Column] = []
    for name in ("key", "value"):
        is_text = F.is_valid_utf8(F.col(name).cast("string"))
        texts.append(F.when(is_text, F.col(name).cast("string")).alias(name))
        texts.append(F.when(~is_text, F.base64(name)).alias(f"{name}_base64"))
    return letters.select("topic", "partition", "offset", "reason", *texts).orderBy(
        "topic", "partition", "offset"
    )


def _letter(row: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return a dead letter with its key and value as text, or in Base64 if they are not UTF-8."""
    return {n: value for n, value in row.items() if n in _LETTER_FIELDS or value is not None}


def _times(kind: DataType, field: Field = ()) -> Iterator[Field]:
    """Yield the fields of a schema that are timestamps."""
    if isinstance(kind, TimestampType):
        yield field
    elif isinstance(kind, StructType):
        for part in kind.fields:
            yield from _times(part.dataType, (*field, part.name))
    elif isinstance(kind, ArrayType):
        yield from _times(kind.elementType, (*field, "*"))
    elif isinstance(kind, MapType):
        yield from _times(kind.valueType, (*field, "*"))
