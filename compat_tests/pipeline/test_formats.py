"""Keys and values of every format become columns; what does not fit is kept and explained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from kafka import KafkaProducer
from pyspark.sql import Row, SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.command import command, run
from compat_tests.pipeline.scene import Scene
from kwire.testing import SchemaRegistry
from kwire_pipeline.commands.replay import replay_letters
from kwire_pipeline.config.load import load
from kwire_pipeline.config.model import Registry
from kwire_pipeline.config.values import Evolution, Format, Mode, TableFormat
from tests.support.avro_bytes import OLDER, ORDER, older_order, order, text, with_id


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Scene:
    chosen = Scene(spark, broker, topic, tmp_path)
    chosen.create_topic(1)
    return chosen


Record = tuple[bytes | None, bytes | None]
"""A key and a value."""


def send(scene: Scene, records: Sequence[Record]) -> None:
    """Produce records to the only partition, in order."""
    producer = KafkaProducer(bootstrap_servers=scene.broker.address, acks="all")
    for future in [producer.send(scene.topic, value, key=key) for key, value in records]:
        future.get(60)
    producer.close()


@pytest.mark.long
def test_undeclared_fields_go_to_the_rescue_column(scene: Scene) -> None:
    """A table without the column gets it; rows from before have null there."""
    send(scene, [(None, b'{"id": 1, "extra": {"a": [1, "x"]}}')])
    scene.run()
    table = attrs.evolve(scene.pipeline.table, evolution=Evolution.RESCUE)
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    send(scene, [(None, b'{"id": 2, "extra": {"a": [1, "x"]}, "b": "1"}'), (None, b'{"id": 3}')])
    assert scene.run().rows == 2
    rows = {row.id: row.rescued for row in scene.rows()}
    assert json.loads(rows.pop(2)) == {"extra": {"a": [1, "x"]}, "b": "1"}
    assert rows == {1: None, 3: None}
    assert scene.verify().is_clean


NESTED = "id BIGINT, part STRUCT<n: INT{0}>, parts ARRAY<STRUCT<n: INT{0}>>"
"""A schema, with room for another field in each struct."""


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (TableFormat.ICEBERG, Mode.APPEND),
        pytest.param(TableFormat.DELTA, Mode.UPSERT, marks=pytest.mark.long),
        pytest.param(TableFormat.ICEBERG, Mode.UPSERT, marks=pytest.mark.long),
        pytest.param(TableFormat.DELTA, Mode.APPEND, marks=pytest.mark.long),
        pytest.param(TableFormat.PARQUET, Mode.APPEND, marks=pytest.mark.long),
    ],
)
def test_fields_of_structs_are_added_to_the_table(
    scene: Scene, kind: TableFormat, mode: Mode
) -> None:
    """A later file without them writes null there."""
    table = attrs.evolve(
        scene.pipeline.table,
        format=kind,
        warehouse=str(scene.folder / "lake"),
        partition_by=(),
        mode=mode,
        keys=("id",) if mode is Mode.UPSERT else (),
        evolution=Evolution.ADDITIVE,
    )
    for number, field in enumerate(("", ", city: STRING", "")):
        value = attrs.evolve(scene.pipeline.value, schema=NESTED.format(field))
        scene.pipeline = attrs.evolve(scene.pipeline, table=table, value=value)
        part = {"n": number, "city": "x"}
        send(scene, [(None, json.dumps({"id": number, "part": part, "parts": [part]}).encode())])
        assert scene.run().rows == 1
    for row in scene.rows():
        expected = (row.id, "x" if row.id == 1 else None)
        assert (row.part.n, row.part.city) == expected
        assert [(part.n, part.city) for part in row.parts] == [expected]
    assert len(scene.rows()) == 3
    assert scene.verify().is_clean


FILE = """\
name: orders
source: {{bootstrap: "{broker}", topics: [{topic}]}}
table: {{format: parquet, warehouse: {folder}/lake, name: shop.orders{table}}}
dead_letters: {{table: shop.dead}}
checkpoint: {folder}/checkpoint
"""


def run_file(scene: Scene, lines: Sequence[str], table: str = "") -> tuple[list[Row], list[Row]]:
    """Run the pipeline of a file with lines added; return the rows, and the dead letters."""
    folder = scene.folder
    file = folder / "orders.yaml"
    text = FILE.format(broker=scene.broker.address, topic=scene.topic, folder=folder, table=table)
    file.write_text(text + "\n".join(lines))
    scene.pipeline = load(str(file), [], {})
    scene.run()
    return tables(scene)


def tables(scene: Scene) -> tuple[list[Row], list[Row]]:
    """Return the rows and the dead letters of the file's tables."""
    lake, read = scene.folder / "lake" / "shop", scene.spark.read
    rows = read.parquet(str(lake / "orders")).orderBy("kafka_offset").collect()
    return rows, read.parquet(str(lake / "dead")).orderBy("offset").collect()


@pytest.mark.long
def test_fields_of_json_keys_are_columns(scene: Scene) -> None:
    records = [
        (b'{"customer": {"id": 7}}', b'{"id": 1, "x": 1}'),
        (None, b'{"id": 2}'),
        (b'{"customer": 7}', b'{"id": 3}'),
        (b"7", b'{"id": 4'),
    ]
    send(scene, records)
    rows, letters = run_file(
        scene,
        [
            'value: {format: json, schema: "id BIGINT NOT NULL"}',
            'key: {format: json, schema: "customer STRUCT<id: BIGINT>"}',
            "columns: {customer: key.customer.id}",
        ],
        table=", evolution: rescue",
    )
    assert [(row.id, row.customer, row.rescued) for row in rows] == [
        (1, 7, '{"x":1}'),
        (2, None, None),
    ]
    assert [row.reason for row in letters] == [
        "key: customer is not struct<id:bigint>",
        "not JSON; key: not a JSON object",
    ]
    assert [bytes(row.key) for row in letters] == [key for key, _ in records[2:]]


@pytest.mark.long
def test_avro_keys_and_values_are_rows(scene: Scene) -> None:
    """The schema lies in a file beside the pipeline's."""
    (scene.folder / "order.avsc").write_text(ORDER)
    send(
        scene,
        [
            (text("k1"), order(1, "a")),
            (text("k2"), order(2)[:-1]),
            (None, order(3) + b"\0"),
            (b"\x09", order(4)),
            (text("k5"), order(5, "e")),
        ],
    )
    rows, letters = run_file(
        scene,
        [
            'value: {format: avro, schema: "@order.avsc"}',
            """key: {format: avro, schema: '"string"'}""",
            "columns: {customer: key}",
        ],
    )
    assert [(row.customer, row.id, row.name) for row in rows] == [("k1", 1, "a"), ("k5", 5, "e")]
    assert [row.reason for row in letters] == [
        "not a record of the schema",
        "bytes after the Avro record",
        "key: not a record of the schema",
    ]


def test_avro_of_a_registry_is_read_by_the_schema_of_each_record(scene: Scene) -> None:
    """`init` pins the newest schema, `run` reads older and newer records by their own."""
    registry = SchemaRegistry()
    registry.register(f"{scene.topic}-value", OLDER, schema_id=7)
    registry.register(f"{scene.topic}-value", ORDER, schema_id=8)
    registry.register("customers", '"string"', schema_id=9)
    records = [
        (with_id(9, text("k1")), with_id(7, older_order(1))),
        (None, with_id(8, order(2, "b"))),
        (None, with_id(5, order(3))),
        (None, order(4)),
        (None, with_id(7, order(5))),
        (text("no id"), with_id(8, order(6))),
    ]
    send(scene, records)
    folder = scene.folder
    file, log = folder / "orders.yaml", folder / "log"
    with registry:
        flags = {
            "source.bootstrap": scene.broker.address,
            "source.topics": scene.topic,
            "registry.url": registry.url,
            "value.format": "avro-registry",
            "key.format": "avro-registry",
            "key.subject": "customers",
            "columns": "customer=key",
            "table.format": "parquet",
            "table.name": "shop.orders",
            "table.warehouse": str(folder / "lake"),
            "dead_letters.table": "shop.dead",
            "checkpoint": str(folder / "checkpoint"),
            "spark.master": "local[2]",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        assert run(command("init", file, *words), log) == 0, log.read_text()
        assert run(command("run", file), log) == 0, log.read_text(errors="replace")[-3000:]
        assert "/schemas/ids/7" in registry.requests
    rows, letters = tables(scene)
    assert [(row.customer, row.id, row.name) for row in rows] == [("k1", 1, None), (None, 2, "b")]
    assert [row.reason for row in letters] == [
        "the registry has no schema 5",
        "no zero byte and schema id at the beginning",
        "not a record of schema 7 that the file's schema reads",
        "key: no zero byte and schema id at the beginning",
    ]


def test_letters_of_a_schema_that_is_registered_later_are_replayed(
    scene: Scene, spark: SparkSession
) -> None:
    registry = SchemaRegistry()
    value = attrs.evolve(scene.pipeline.value, format=Format.AVRO_REGISTRY, schema=ORDER)
    table = attrs.evolve(scene.pipeline.table, partition_by=())
    with registry:
        scene.pipeline = attrs.evolve(
            scene.pipeline, value=value, table=table, registry=Registry(url=registry.url)
        )
        registry.register("orders", ORDER, schema_id=1)
        send(scene, [(None, with_id(1, order(1))), (None, with_id(2, older_order(2)))])
        assert scene.run().reasons == {"the registry has no schema 2": 1}
        registry.register("orders", OLDER, schema_id=2)
        assert replay_letters(spark, scene.pipeline) == (1, 0)
        assert sorted(row.id for row in scene.rows()) == [1, 2]
        assert scene.verify().is_clean
