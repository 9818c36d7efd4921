"""JSON after the id of a JSON Schema becomes columns; other ids are dead letters with a reason."""

import json
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from kwire.testing import SchemaRegistry
from kwire_pipeline.config.document import ConfigError, read_document
from kwire_pipeline.config.load import build
from kwire_pipeline.config.model import KeyFormat, Pipeline, Registry, Source, Table, ValueFormat
from kwire_pipeline.config.values import Column, Format
from kwire_pipeline.engine.schemas import Schemas, with_schemas
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.shape_and_tables import RAW_DDL, shape_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.records.frames import Shape, classify, misfits, rows
from kwire_pipeline.registry import Client
from tests.support.avro_bytes import ORDER, order, text, with_id
from tests.support.pipeline.frames import key_frame, plan, topic

SCHEMA = json.dumps(
    {
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "who": {"type": "object", "properties": {"name": {"type": ["null", "string"]}}},
        },
        "required": ["id"],
    }
)
PIPELINE = Pipeline(
    name="orders",
    source=Source(bootstrap="127.0.0.1:9092", topics=("orders",)),
    value=ValueFormat(format=Format.JSON_REGISTRY, schema=SCHEMA),
    table=Table(name="shop.orders"),
    checkpoint="checkpoint",
)


@pytest.fixture(scope="module")
def shape(spark: SparkSession) -> Shape:
    set_session(spark)
    return shape_of(PIPELINE, SCHEMA)


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()
    registry.register("orders-value", SCHEMA, "JSON", schema_id=1)
    registry.register("others-value", ORDER, schema_id=2)
    registry.register("protos-value", "syntax = 'proto3';", "PROTOBUF", schema_id=3)
    with registry as running:
        yield running


def begin(spark: SparkSession, server: SchemaRegistry, folder: Path) -> Schemas:
    files = Folder(spark, str(folder))
    return Schemas(files, Client.of(Registry(url=server.url)), "pipeline-1")


VALUES = [
    with_id(1, b'{"id": 1, "at": "2026-11-27T10:00:00Z", "who": {"name": "ann"}, "x": 1}'),
    with_id(1, b'{"at": null}'),
    with_id(1, b'{"id": 2'),
    with_id(1, b'{"id": 2} {}'),
    with_id(2, b'{"id": 3}'),
    with_id(3, b'{"id": 4}'),
    with_id(9, b'{"id": 5}'),
    b'{"id": 6}',
    None,
    with_id(1, b'{"id": 7, "who": null}'),
]
REASONS = [
    "id is missing",
    "not JSON",
    "text after the JSON value",
    "schema 2 is AVRO, not JSON Schema",
    "schema 3 is PROTOBUF, not Avro",
    "the registry has no schema 9",
    "no zero byte and schema id at the beginning",
    "the value is null",
]


def test_values_of_json_schemas_become_rows(
    spark: SparkSession, shape: Shape, server: SchemaRegistry, tmp_path: Path
) -> None:
    """The answers are kept, so a repeated batch and a later run ask for no known id."""
    for batch_id, may_be_repeated in ((0, False), (0, True), (1, False)):
        schemas = begin(spark, server, tmp_path)
        batch, chosen = schemas.classify(
            topic(spark, list(VALUES)), shape, batch_id, may_be_repeated=may_be_repeated
        )
        table = rows(batch, chosen).orderBy("kafka_offset").collect()
        assert [(row.id, row.who and row.who.name) for row in table] == [(1, "ann"), (7, None)]
        assert table[0]["at"].isoformat() == "2026-11-27T10:00:00"
        letters = misfits(batch, chosen).orderBy("offset").collect()
        assert [letter.reason for letter in letters] == REASONS
        batch.unpersist()
    assert server.requests.count("/schemas/ids/1") == 1


def test_keys_may_have_schemas_of_another_type(
    spark: SparkSession, server: SchemaRegistry, tmp_path: Path
) -> None:
    """An id is of one type, so the id of a key is no schema of a value."""
    server.register("orders-key", '"string"', schema_id=4)
    pipeline = attrs.evolve(
        PIPELINE,
        value=ValueFormat(format=Format.STRING),
        key=KeyFormat(format=Format.JSON_REGISTRY, schema=SCHEMA),
        columns={"n": Column.parse("key.id")},
    )
    chosen = shape_of(pipeline, None)
    frame = key_frame(spark, [with_id(1, b'{"id": 8}'), with_id(4, text("k"))])
    batch, chosen = begin(spark, server, tmp_path).classify(frame, chosen, 0, may_be_repeated=False)
    assert [row.n for row in rows(batch, chosen).collect()] == [8]
    assert [row.reason for row in misfits(batch, chosen).collect()] == [
        "key: schema 4 is AVRO, not JSON Schema"
    ]
    avro = attrs.evolve(PIPELINE, value=ValueFormat(format=Format.AVRO_REGISTRY, schema=ORDER))
    values: list[bytes | None] = [with_id(1, b"{}"), with_id(2, order(3))]
    for _ in range(2):
        schemas = begin(spark, server, tmp_path)
        batch, chosen = schemas.classify(
            topic(spark, values), shape_of(avro, ORDER), 1, may_be_repeated=False
        )
        assert [row.id for row in rows(batch, chosen).collect()] == [3]
        assert [row.reason for row in misfits(batch, chosen).collect()] == [
            "schema 1 is JSON, not Avro"
        ]


def test_text_is_parsed_once(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    folder = str(tmp_path / "raw")
    topic(spark, [VALUES[0]]).write.parquet(folder)
    chosen = with_schemas(shape, {}, {}, (1,))
    batch = classify(spark.read.schema(RAW_DDL).parquet(folder), chosen).persist()
    assert plan(rows(batch, chosen)).count("from_json(") == 1
    batch.unpersist()


FILE = """\
name: orders
source: {{bootstrap: "127.0.0.1:9092", topics: [orders]}}
registry: {{url: "http://127.0.0.1:8081"}}
value: {{format: json-registry, schema: '{schema}'}}
table: {{warehouse: lake, name: shop.orders, partition_by: ["days(at)"]}}
checkpoint: lake/checkpoint
"""


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (SCHEMA, ""),
        ("{}", "value.schema: $: a value has to be an object with properties"),
        ('{"properties": {"a": {"type": "null"}}}', 'value.schema: $.a: the type "null"; expected'),
        ('{"properties": {"a": {"type": "string"}}}', "table.partition_by: the table has no colu"),
    ],
)
def test_a_wrong_schema_is_refused_before_spark_starts(schema: str, error: str) -> None:
    document = read_document("orders.yaml", FILE.format(schema=schema), {})
    if not error:
        assert build(document, [], {}).value.format is Format.JSON_REGISTRY
        return
    with pytest.raises(ConfigError) as raised:
        build(document, [], {})
    assert error in str(raised.value)
