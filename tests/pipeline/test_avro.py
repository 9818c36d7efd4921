"""Avro values and keys become columns; bytes that are no record are dead letters with a reason."""

import json
from decimal import Decimal

import attrs
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kwire_pipeline.config.values import Column, Format
from kwire_pipeline.engine.avro import avro_fields, avro_limits
from kwire_pipeline.engine.schemas import with_schemas
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape, classify, misfits, rows
from tests.support.avro_bytes import OLDER, ORDER, number, older_order, order, text, with_id
from tests.support.pipeline.frames import key_frame, plan, topic

HUGE = number(1) + number(1) + number((1 << 31) - 10) + b"x"
"""A record whose text would be two gigabytes long."""


@pytest.fixture(scope="module")
def shape(spark: SparkSession) -> Shape:
    set_session(spark)
    avro = avro_fields(ORDER, "value.schema")
    assert isinstance(avro.kind, StructType)
    return Shape(format=Format.AVRO, schema=avro.kind, avro=avro)


@pytest.fixture(scope="module")
def registry(shape: Shape) -> Shape:
    """Two writers' schemas, and ids that have none."""
    assert shape.avro is not None
    problems = {9: "the registry has no schema 9"}
    avro = attrs.evolve(shape.avro, writers={1: OLDER, 70_000: ORDER}, problems=problems)
    return attrs.evolve(shape, format=Format.AVRO_REGISTRY, avro=avro)


def reasons(batch: DataFrame, shape: Shape) -> list[str]:
    return [row.reason for row in misfits(batch, shape).orderBy("offset").collect()]


def test_records_of_the_schema_become_rows(spark: SparkSession, shape: Shape) -> None:
    batch = classify(topic(spark, [order(1, "a"), order(-(1 << 40))]), shape)
    assert [(row.id, row.name) for row in rows(batch, shape).collect()] == [
        (1, "a"),
        (-(1 << 40), None),
    ]


def test_other_bytes_are_dead_letters(spark: SparkSession, shape: Shape) -> None:
    """Neither a cut record, nor one with bytes after it, nor a huge length fails the batch."""
    values = [order(1, "ab")[:-1], order(1) + b"\0", b"", b"\xff" * 30, HUGE, None, order(2)]
    batch = classify(topic(spark, list(values)), shape)
    assert [row.id for row in rows(batch, shape).collect()] == [2]
    assert reasons(batch, shape) == [
        "not a record of the schema",
        "bytes after the Avro record",
        *["not a record of the schema"] * 3,
        "the value is null",
    ]


def test_text_that_is_not_utf_8_is_a_dead_letter(spark: SparkSession) -> None:
    """Avro does not look at the bytes of a text, and Arrow cannot read a column with such a one."""
    tags, names = {"type": "array", "items": "string"}, {"type": "map", "values": "string"}
    fields = [
        {"name": name, "type": kind}
        for name, kind in {"name": ["null", "string"], "tags": tags, "names": names}.items()
    ]
    whole = json.dumps({"type": "record", "name": "Order", "fields": fields})
    avro = avro_fields(whole, "value.schema")
    assert isinstance(avro.kind, StructType)
    shape = Shape(format=Format.AVRO, schema=avro.kind, avro=avro)
    good, bad = text("\u00fc"), number(2) + b"\xc3\x28"

    def datum(name: bytes, tag: bytes, key: bytes, value: bytes) -> bytes:
        parts = (number(1), name, number(1), tag, number(0), number(1), key, value, number(0))
        return b"".join(parts)

    values = [datum(good, good, good, good)]
    values += [datum(*[bad if at == n else good for at in range(4)]) for n in range(4)]
    batch = classify(topic(spark, list(values)), shape)
    (row,) = rows(batch, shape).collect()
    assert (row.name, row.tags, row.names) == ("\u00fc", ["\u00fc"], {"\u00fc": "\u00fc"})
    assert reasons(batch, shape) == ["a text is not UTF-8"] * 4


def test_each_record_is_read_by_the_schema_of_its_id(spark: SparkSession, registry: Shape) -> None:
    values = [with_id(1, older_order(7)), with_id(70_000, order(8, "b"))]
    batch = classify(topic(spark, list(values)), registry)
    assert [(r.id, r.name) for r in rows(batch, registry).collect()] == [(7, None), (8, "b")]


def test_ids_without_a_schema_are_dead_letters(spark: SparkSession, registry: Shape) -> None:
    values = [
        order(1, "no id"),
        b"\0\0\0",
        with_id(9, order(1)),
        with_id(4_000_000_000, order(1)),
        with_id(1, order(1)),
        with_id(1, older_order(1) + b"x"),
        None,
    ]
    batch = classify(topic(spark, list(values)), registry)
    assert rows(batch, registry).count() == 0
    assert reasons(batch, registry) == [
        "no zero byte and schema id at the beginning",
        "no zero byte and schema id at the beginning",
        "the registry has no schema 9",
        "schema 4000000000 was not asked for: too many unknown ids in a batch",
        "not a record of schema 1 that the file's schema reads",
        "bytes after the Avro record",
        "the value is null",
    ]


def test_numbers_keep_the_meaning_that_their_writer_gave_them(spark: SparkSession) -> None:
    """Avro would read the microseconds of one writer as milliseconds, and cents as others."""

    def schema(unit: str, scale: int) -> str:
        at = {"type": "long", "logicalType": f"timestamp-{unit}"}
        price = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": scale}
        fields = [{"name": "at", "type": at}, {"name": "price", "type": ["null", price]}]
        return json.dumps({"type": "record", "name": "Order", "fields": fields})

    avro = avro_fields(schema("millis", 2), "value.schema", is_plain=False)
    assert isinstance(avro.kind, StructType)
    bare = Shape(format=Format.AVRO_REGISTRY, schema=avro.kind, avro=avro)
    writers = {1: schema("millis", 2), 2: schema("micros", 2), 3: schema("millis", 3)}
    shape = with_schemas(bare, writers, {})
    price = number(1) + number(1) + b"\x7b"
    second = 1_793_527_200
    values = [with_id(n, number(second * 1000) + price) for n in (1, 3)]
    values.insert(1, with_id(2, number(second * 1_000_000) + price))
    batch = classify(topic(spark, list(values)), shape)
    classified = batch.select(F.unix_seconds("at").alias("second"), "price", frames.CLASS).collect()
    assert [(row.second, row.price) for row in classified if row[frames.CLASS] == frames.GOOD] == [
        (second, Decimal("1.23")), (second, Decimal("1.23")),
    ]  # fmt: skip
    assert reasons(batch, shape) == [
        "schema 3: price is decimal(10,3), and decimal(10,2) in the file's schema"
    ]


def test_a_record_is_decoded_once(spark: SparkSession, shape: Shape, registry: Shape) -> None:
    """A registry has one branch for each schema, of which a record takes one."""
    for chosen, count in ((shape, 1), (registry, 2)):
        batch = classify(topic(spark, [order(1)]), chosen).persist()
        words = plan(rows(batch, chosen))
        assert words.count("from_avro(") == count
        assert "Python" not in words
        batch.unpersist()


def test_keys_of_a_plain_type_have_one_column(spark: SparkSession, shape: Shape) -> None:
    avro = avro_fields('"string"', "key.schema")
    chosen = Shape(
        format=Format.STRING,
        key_format=Format.AVRO,
        key_avro=avro,
        columns={"customer": Column.parse("key")},
    )
    batch = classify(key_frame(spark, [text("c1"), None, b"\x09"]), chosen)
    table: list[Row] = rows(batch, chosen).orderBy("kafka_offset").collect()
    assert [row.customer for row in table] == ["c1", None]
    assert reasons(batch, chosen) == ["key: not a record of the schema"]


def test_fields_of_an_avro_key_are_columns(spark: SparkSession, shape: Shape) -> None:
    avro = avro_fields(ORDER, "key.schema")
    columns = {"order_id": Column.parse("key.id")}
    chosen = Shape(format=Format.RAW, key_format=Format.AVRO, key_avro=avro, columns=columns)
    batch = classify(key_frame(spark, [order(3)]), chosen)
    assert [row.order_id for row in rows(batch, chosen).collect()] == [3]


def test_a_schema_that_spark_does_not_read_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Refusal, match=r"^value.schema: Spark does not accept this schema") as error:
        avro_fields('{"type": "enum", "name": "E", "symbols": [""]}', "value.schema")
    assert "\n" not in str(error.value)


def test_limits_of_avro_come_before_the_options_of_the_user() -> None:
    key = "spark.driver.extraJavaOptions"
    options = avro_limits({key: "-Dmine=1"})
    assert options[key].startswith("-Dorg.apache.avro.limits.")
    assert options[key].endswith(" -Dmine=1")
