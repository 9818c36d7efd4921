"""The parts of a run, built from the configuration: the shape of rows, and the tables."""

import hashlib
import importlib
from collections.abc import Callable

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kwire_pipeline.config.json_schema import ddl_of
from kwire_pipeline.config.model import Pipeline, RecordFormat
from kwire_pipeline.config.values import Envelope, Evolution, Format, TableFormat
from kwire_pipeline.engine.avro import avro_fields
from kwire_pipeline.engine.by_key.upsert import check_keys
from kwire_pipeline.engine.expectations import check_columns, check_expectations
from kwire_pipeline.engine.own_files import own_files
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.engine.source import client
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Permanent, Refusal
from kwire_pipeline.records import changes, frames
from kwire_pipeline.records.avro import AvroFields
from kwire_pipeline.records.changes import Changes
from kwire_pipeline.records.fields import Frame
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.delta import DeltaTable
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.iceberg import IcebergTable
from kwire_pipeline.tables.letter_records import Owner
from kwire_pipeline.tables.parquet import ParquetTable
from kwire_pipeline.tables.table import LETTERS, Letters, Origin, Table
from kwire_pipeline.tables.topic import LetterTopic

RAW_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The columns of Spark's Kafka source with headers."""


def shape_of(pipeline: Pipeline, ddl: str | None) -> Shape:
    """Return the shape of rows; ``ddl`` is the value's schema."""
    value, key = pipeline.value, pipeline.key
    schema, avro = _fields("value", value, ddl)
    if avro is not None and pipeline.table.envelope is Envelope.DEBEZIUM:
        schema = _row_of(schema)
    key_schema, key_avro = _fields("key", key, key.schema)
    shape = Shape(
        format=value.format,
        schema=schema,
        units=value.timestamps,
        avro=avro,
        frame=Frame() if value.format is Format.JSON_REGISTRY else None,
        key_format=key.format,
        key_schema=key_schema,
        key_units=key.timestamps,
        key_avro=key_avro,
        key_frame=Frame() if key.format is Format.JSON_REGISTRY else None,
        columns=pipeline.columns,
        omit=pipeline.omit,
        expectations={
            name: (expectation.check, expectation.action)
            for name, expectation in pipeline.expectations.items()
        },
        rescue_column=pipeline.table.rescue_column
        if pipeline.table.evolution is Evolution.RESCUE
        else None,
        origin_prefix=pipeline.table.origin_prefix,
        changes=Changes(
            keys=pipeline.table.keys,
            envelope=pipeline.table.envelope,
            tombstones=pipeline.table.tombstones,
            sequence=pipeline.table.sequence_by,
            unavailable=pipeline.table.unavailable_value,
        ),
    )
    shape.check()
    return shape


def _fields(
    part: str, record: RecordFormat, schema: str | None
) -> tuple[StructType | None, AvroFields | None]:
    """Return the fields of keys or values, and the decoding if they are Avro."""
    if record.format in (Format.RAW, Format.STRING):
        return None, None
    if schema is None:
        raise Refusal(f"{part}.schema: {record.format.value} needs a schema")
    if record.format is Format.JSON:
        return parse_ddl(schema, f"{part}.schema"), None
    if record.format is Format.JSON_REGISTRY:
        return parse_ddl(ddl_of(schema), f"{part}.schema"), None
    is_plain = record.format is Format.AVRO
    avro = avro_fields(schema, f"{part}.schema", is_plain=is_plain)
    return avro.kind if isinstance(avro.kind, StructType) else None, avro


def _row_of(envelope: StructType | None) -> StructType:
    """Return the type of the row in an envelope of Avro."""
    fields = {} if envelope is None else {f.name: f.dataType for f in envelope.fields}
    row = fields.get(changes.AFTER)
    if not isinstance(row, StructType):
        raise Refusal(f"value.schema: the envelope has no record {changes.AFTER}")
    return row


def origin_of(pipeline: Pipeline) -> Origin:
    """Return the table's columns for a row's origin."""
    prefix = pipeline.table.origin_prefix
    return Origin(f"{prefix}topic", f"{prefix}partition", f"{prefix}offset")


def destinations_of(spark: SparkSession, pipeline: Pipeline) -> Destinations:
    """Return the tables and the transform of a pipeline."""
    origin, deletions = origin_of(pipeline), pipeline.table.deletions
    return Destinations(
        table=_table(spark, pipeline, pipeline.table.name, origin, is_plain=False),
        dead_letters=_letters(spark, pipeline),
        deletions=None
        if deletions is None
        else _table(spark, pipeline, deletions, origin, is_plain=True),
        transform=None if pipeline.transform is None else transform_of(pipeline.transform),
    )


def _letters(spark: SparkSession, pipeline: Pipeline) -> Letters | None:
    table, topic = pipeline.dead_letters.table, pipeline.dead_letters.topic
    if table is not None:
        return _table(spark, pipeline, table, LETTERS, is_plain=True)
    if topic is None:
        return None
    return LetterTopic(
        spark,
        topic,
        client(pipeline.source),
        Owner(pipeline.name, pipeline.table.name),
        Folder(spark, pipeline.checkpoint),
    )


def _table(
    spark: SparkSession, pipeline: Pipeline, name: str, origin: Origin, *, is_plain: bool
) -> Table:
    """Return a table in the pipeline's format; a plain table has no partitions or sort order."""
    table = pipeline.table
    partition_by = () if is_plain else table.partition_by
    if table.format is TableFormat.ICEBERG:
        return IcebergTable(
            spark,
            f"{table.catalog.name}.{name}",
            origin,
            partition_by=partition_by,
            sort_by=() if is_plain else table.sort_by,
            properties=table.properties,
        )
    if table.warehouse is None:
        raise Refusal(f"table.warehouse: a {table.format.value} table needs the folder of all")
    url = f"{table.warehouse.rstrip('/')}/{name.replace('.', '/')}"
    if table.format is TableFormat.DELTA:
        return DeltaTable(
            spark, url, origin, partition_by=partition_by, properties=table.properties
        )
    return ParquetTable(spark, url, origin, partition_by=partition_by)


Transform = Callable[[DataFrame], DataFrame]


def rows_schema(spark: SparkSession, shape: Shape, transform: Transform | None) -> StructType:
    """Return the schema of the rows from analysis alone; raise Refusal if Spark cannot run it."""
    raw = spark.createDataFrame([], RAW_DDL)
    if shape.expressions:
        check_columns(frames.inputs(raw, shape), shape)
    if shape.expectations:
        plain = frames.classify(raw, attrs.evolve(shape, expectations={}))
        check_expectations(plain, shape)
    frame = frames.rows(frames.classify(raw, shape), shape)
    before = None
    if transform is not None:
        before, frame = frame.schema, transform(frame)
    names = {name.lower() for name in frame.columns}
    lost = [
        column
        for column in (f"{shape.origin_prefix}{name}" for name in frames.ORIGIN)
        if column.lower() not in names
    ]
    if lost:
        raise Permanent(f"transform: the frame lacks {', '.join(lost)}: keep these columns")
    check_keys(frame, shape, before)
    return frame.schema


def transform_hash(place: str | None) -> str:
    """Return the hash of the files that make up the user's function; empty if there are none."""
    if place is None:
        return ""
    transform_of(place)
    files = own_files(place.partition(":")[0])
    if not files:
        return ""
    whole = hashlib.sha256()
    for name, path in sorted(files.items()):
        whole.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def transform_of(place: str) -> Callable[[DataFrame], DataFrame]:
    """Import the user's function, ``module:function``."""
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Permanent(f"transform: {place} cannot be imported: {error}") from None

    def transform(frame: DataFrame) -> DataFrame:
        result = function(frame)
        if not isinstance(result, DataFrame):
            raise Permanent(f"transform: {place} returned {type(result).__name__}, not a DataFrame")
        return result

    return transform
