"""Debezium's envelopes in Avro write and delete rows, as those in JSON do."""

import json

import pytest
from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.config.document import ConfigError, read_document
from kwire_pipeline.config.load import build
from kwire_pipeline.config.model import Pipeline, Source, Table, ValueFormat
from kwire_pipeline.config.values import Column, Envelope, Format, Mode, Tombstones
from kwire_pipeline.engine.by_key.upsert import all_changes, last_changes
from kwire_pipeline.engine.schemas import with_schemas
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.shape_and_tables import RAW_DDL, rows_schema, shape_of
from kwire_pipeline.records.frames import DELETES, Shape, classify, misfits
from tests.support.avro_bytes import ORDER
from tests.support.envelopes import FIELDS, change, envelope_schema
from tests.support.pipeline.frames import plan, topic

TOAST = "__debezium_unavailable_value"


@pytest.fixture(scope="module")
def shape(spark: SparkSession) -> Shape:
    set_session(spark)
    pipeline = Pipeline(
        name="orders",
        source=Source(bootstrap="127.0.0.1:9092", topics=("orders",)),
        value=ValueFormat(format=Format.AVRO_REGISTRY, schema=envelope_schema()),
        columns={"lsn": Column.parse("source.lsn")},
        table=Table(
            name="shop.orders",
            mode=Mode.UPSERT,
            keys=("id",),
            envelope=Envelope.DEBEZIUM,
            tombstones=Tombstones.IGNORE,
        ),
        checkpoint="checkpoint",
    )
    return with_schemas(shape_of(pipeline, envelope_schema()), {1: envelope_schema()}, {})


def row(id_: str, n: int | None = None, text: str | None = None) -> dict[str, object]:
    return {"id": id_, "n": n, "text": text}


def last(batch: DataFrame, shape: Shape) -> dict[str, tuple[object, ...]]:
    """Return the last change of each key."""
    changes = last_changes(all_changes(batch, shape, None), shape).collect()
    return {each.id: (each.n, each.text, each.lsn, each[DELETES]) for each in changes}


def reasons(batch: DataFrame, shape: Shape) -> list[str]:
    return [each.reason for each in misfits(batch, shape).orderBy("offset").collect()]


def test_columns_are_those_of_the_row(spark: SparkSession, shape: Shape) -> None:
    fields = rows_schema(spark, shape, None).fields[:5]
    assert [(field.name, field.dataType.simpleString()) for field in fields] == [
        ("id", "string"),
        ("n", "int"),
        ("text", "string"),
        ("data", "binary"),
        ("lsn", "bigint"),
    ]


def test_operations_write_and_delete_rows(spark: SparkSession, shape: Shape) -> None:
    values = [
        change("r", None, row("a", 1, "x"), lsn=1),
        change("c", None, row("b", 2), lsn=2),
        change("u", row("a", 1, "x"), row("a", 3, "y"), lsn=3),
        change("d", {"id": "b"}, None, lsn=4),
        None,
    ]
    batch = classify(topic(spark, list(values)), shape)
    changes = last(batch, shape)
    assert changes["a"] == (3, "y", 3, False)
    assert changes["b"][3]
    assert reasons(batch, shape) == []


def test_value_that_is_no_change_is_a_dead_letter(spark: SparkSession, shape: Shape) -> None:
    values = [
        change("t", None, None),
        change("u", row("a"), None),
        change("d", None, None),
        change("d", row("a"), None) + b"x",
        change("c", None, row("a"))[:-1],
        change("d", row("a"), None, schema_id=2),
        b"{}",
    ]
    batch = classify(topic(spark, list(values)), shape)
    assert last(batch, shape) == {}
    assert reasons(batch, shape) == [
        "op is not c, u, r or d",
        "after is missing",
        "the table's key (id) is null",
        "bytes after the Avro record",
        "not a record of schema 1 that the file's schema reads",
        "schema 2 was not asked for: too many unknown ids in a batch",
        "no zero byte and schema id at the beginning",
    ]


def test_change_is_read_by_the_schema_of_its_id(spark: SparkSession, shape: Shape) -> None:
    older = envelope_schema(FIELDS[:1])
    chosen = with_schemas(shape, {1: envelope_schema(), 2: older}, {})
    values = [
        change("c", None, {"id": "a"}, fields=FIELDS[:1], schema_id=2, lsn=1),
        change("c", None, row("b", 2, "y"), lsn=2),
    ]
    batch = classify(topic(spark, list(values)), chosen)
    assert last(batch, chosen) == {"a": (None, None, 1, False), "b": (2, "y", 2, False)}


def test_placeholders_of_unchanged_values_are_kept_out(spark: SparkSession, shape: Shape) -> None:
    left_out = {"text": TOAST, "data": TOAST.encode()}
    values = [
        change("c", None, {**row("a", 1, "long"), "data": b"a"}),
        change("u", None, {**row("a", 2), **left_out}),
        change("u", None, {**row("b", 3), **left_out}),
    ]
    batch = classify(topic(spark, list(values)), shape)
    changes = {
        each.id: each for each in last_changes(all_changes(batch, shape, None), shape).collect()
    }
    assert (changes["a"].n, changes["a"].text, bytes(changes["a"].data)) == (2, "long", b"a")
    assert (changes["b"].n, changes["b"].text, changes["b"].data) == (3, None, None)
    assert (changes["b"]["__keeps_text"], changes["b"]["__keeps_data"]) == (True, True)


def test_an_envelope_is_decoded_once(
    spark: SparkSession, shape: Shape, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("raw") / "raw")
    topic(spark, [change("c", None, row("a"))]).write.parquet(folder)
    batch = classify(spark.read.schema(RAW_DDL).parquet(folder), shape).persist()
    words = plan(last_changes(all_changes(batch, shape, None), shape))
    assert words.count("from_avro(") == 1
    batch.unpersist()


CHANGES = """\
name: orders
source: {{bootstrap: "127.0.0.1:9092", topics: [orders]}}
value: {{format: avro, schema: '{schema}'}}
columns: {{{columns}}}
table: {{warehouse: lake, name: shop.orders, mode: upsert, keys: [id], envelope: debezium}}
checkpoint: lake/checkpoint
"""


@pytest.mark.parametrize(
    ("schema", "columns", "error"),
    [
        (ORDER, "", "value.schema: a Debezium envelope in Avro has the records before and after"),
        (envelope_schema(), "x: source.file", "columns.x: the envelope's source has no field file"),
        (envelope_schema(FIELDS[1:]), "", "table.keys: the table has no column id; it has n, text"),
        (envelope_schema(), "x: source.lsn", ""),
    ],
)
def test_a_wrong_file_is_refused_before_spark_starts(schema: str, columns: str, error: str) -> None:
    text = CHANGES.format(schema=json.dumps(json.loads(schema)), columns=columns)
    document = read_document("orders.yaml", text, {})
    if not error:
        assert build(document, [], {}).table.keys == ("id",)
        return
    with pytest.raises(ConfigError) as raised:
        build(document, [], {})
    assert error in str(raised.value)
