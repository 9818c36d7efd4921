"""Fields that a schema does not declare are kept as JSON text, where the pipeline says so."""

import json

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.config.values import Format
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.records.frames import Shape, classify, misfits, rows
from tests.support.pipeline.frames import plan, topic

DDL = (
    "id BIGINT NOT NULL, at TIMESTAMP, buyer STRUCT<code: STRING, home: STRUCT<city: STRING>>, "
    "lines ARRAY<STRUCT<item: STRING>>, prices MAP<STRING, STRUCT<net: DOUBLE>>, tags ARRAY<STRING>"
)
CASES: list[tuple[dict[str, object], object]] = [
    ({"id": 1}, None),
    ({"id": 1, "tags": ["a"], "buyer": {"code": "c", "home": {"city": "Bern"}}}, None),
    ({"id": 1, "lines": [{"item": "a"}, {}], "prices": {"EUR": {"net": 1}}}, None),
    ({"id": 1, "n": None}, {"n": None}),
    (
        {"id": 1, "ID": 2, "x": "1", "y": 1, "z": [True, {"a": 0.25}]},
        {"ID": 2, "x": "1", "y": 1, "z": [True, {"a": 0.25}]},
    ),
    ({"id": 1, "buyer": {"code": "c", "vip": True}}, {"buyer": {"vip": True}}),
    ({"id": 1, "buyer": {"home": {"zip": "3000"}}}, {"buyer": {"home": {"zip": "3000"}}}),
    ({"id": 1, "lines": [{}, {"item": "b", "n": 2}]}, {"lines": [None, {"n": 2}]}),
    ({"id": 1, "prices": {"EUR": {"net": 1}, "CHF": {"vat": 2}}}, {"prices": {"CHF": {"vat": 2}}}),
]


@pytest.fixture(scope="module")
def shape(spark: SparkSession) -> Shape:
    set_session(spark)
    schema = parse_ddl(DDL, "value.schema")
    return Shape(format=Format.JSON, schema=schema, rescue_column="rescued")


def rescue_texts(spark: SparkSession, shape: Shape, values: list[bytes | None]) -> list[str | None]:
    batch = classify(topic(spark, values), shape)
    return [row.rescued for row in rows(batch, shape).orderBy("kafka_offset").collect()]


def test_undeclared_fields_are_kept_in_their_places(spark: SparkSession, shape: Shape) -> None:
    texts = rescue_texts(spark, shape, [json.dumps(value).encode() for value, _ in CASES])
    assert [None if text is None else json.loads(text) for text in texts] == [
        rest for _, rest in CASES
    ]


def test_last_of_duplicate_undeclared_fields_counts(spark: SparkSession, shape: Shape) -> None:
    assert rescue_texts(spark, shape, [b'{"a": 1, "id": 1, "a": 2}']) == ['{"a":2}']


def test_fields_of_a_wrong_type_are_dead_letters_and_not_rescued(
    spark: SparkSession, shape: Shape
) -> None:
    values = [b'{"id": "x", "n": 1}', b'{"id": 1}{"n": 1}', b'{"id": 1, "n": }', None, b"17"]
    batch = classify(topic(spark, list(values)), shape)
    assert rows(batch, shape).count() == 0
    assert [row.reason for row in misfits(batch, shape).orderBy("offset").collect()] == [
        "id is not bigint",
        "text after the JSON value",
        "not JSON",
        "the value is null",
        "not a JSON object",
    ]


def test_a_record_is_parsed_once(spark: SparkSession, shape: Shape) -> None:
    batch = classify(topic(spark, [b'{"id": 1}']), shape).persist()
    text = plan(rows(batch, shape))
    assert text.count("from_json(") == 1
    assert "Python" not in text
    batch.unpersist()
