"""Tables that are written by the schemas of a registry: changes, and schemas that change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import Crash, Scene
from kwire.testing import SchemaRegistry
from kwire_pipeline.config.model import Registry, ValueFormat
from kwire_pipeline.config.values import (
    Column,
    Envelope,
    Evolution,
    Format,
    Mode,
    TableFormat,
    Tombstones,
)
from kwire_pipeline.engine.by_key.key_proof import KeyProof
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.errors import Refusal
from tests.support.avro_bytes import ORDER, with_id
from tests.support.envelopes import change, envelope_schema


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


@pytest.fixture
def scene(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, registry: SchemaRegistry
) -> Scene:
    chosen = Scene(spark, broker, topic, tmp_path)
    chosen.create_topic(1)
    chosen.pipeline = attrs.evolve(
        chosen.pipeline,
        registry=Registry(url=registry.url),
        table=attrs.evolve(chosen.pipeline.table, partition_by=()),
    )
    return chosen


def send(scene: Scene, values: Sequence[bytes | None]) -> None:
    """Produce values to the only partition, in order."""
    producer = KafkaProducer(bootstrap_servers=scene.broker.address, acks="all")
    for value in values:
        producer.send(scene.topic, value, key=b"k").get(60)
    producer.close()


@pytest.mark.long
@pytest.mark.parametrize("format", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_changes_of_debezium_in_avro_are_applied(
    scene: Scene, registry: SchemaRegistry, format: TableFormat
) -> None:
    """Large values that Postgres leaves out stay, in text and in bytes."""
    registry.register(f"{scene.topic}-value", envelope_schema(), schema_id=1)
    scene.pipeline = attrs.evolve(
        scene.pipeline,
        columns={"lsn": Column.parse("source.lsn")},
        value=ValueFormat(format=Format.AVRO_REGISTRY, schema=envelope_schema()),
        table=attrs.evolve(
            scene.pipeline.table,
            format=format,
            warehouse=str(scene.folder / "lake"),
            mode=Mode.UPSERT,
            keys=("id",),
            envelope=Envelope.DEBEZIUM,
            tombstones=Tombstones.IGNORE,
        ),
    )
    toast = "__debezium_unavailable_value"
    a, b = {"id": "a", "n": 1, "text": "long", "data": b"\x00\xff"}, {"id": "b", "n": 2}
    send(scene, [change("r", None, a, lsn=1), change("c", None, b, lsn=2)])
    scene.run()
    left_out = {"id": "a", "n": 3, "text": toast, "data": toast.encode()}
    deletion = change("d", {"id": "b"}, None, lsn=4)
    send(scene, [change("u", None, left_out, lsn=3), deletion, None, change("t", None, None)])
    tally = scene.run()
    assert (tally.rows, tally.deletions, tally.ignored, tally.dead_letters) == (1, 1, 1, 1)
    assert tally.reasons == {"op is not c, u, r or d": 1}
    rows = [(row.id, row.n, row.text, bytes(row.data), row.lsn) for row in scene.rows()]
    assert rows == [("a", 3, "long", b"\x00\xff", 3)]
    proof = scene.verify()
    assert isinstance(proof, KeyProof)
    assert proof.is_clean, proof.words()


def schema_of(**properties: object) -> str:
    return json.dumps({"properties": properties, "required": ["id"]})


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def json_of(schema_id: int, **values: object) -> bytes:
    return with_id(schema_id, json.dumps(values).encode())


@pytest.mark.long
def test_values_of_a_json_schema_are_rows(scene: Scene, registry: SchemaRegistry) -> None:
    """A half-done batch keeps the registry's answers, or a record would move between tables."""
    schema = schema_of(id=INTEGER, at={"type": "string", "format": "date-time"})
    registry.register(f"{scene.topic}-value", schema, "JSON", schema_id=1)
    registry.register("others", ORDER, schema_id=3)
    value = ValueFormat(format=Format.JSON_REGISTRY, schema=schema)
    scene.pipeline = attrs.evolve(scene.pipeline, value=value)
    first = json_of(1, id=1, at="2026-11-27T10:00:00Z")
    send(scene, [first, json_of(3, id=2), json_of(9, id=3), b"{}", json_of(1, id="four")])
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    registry.register(f"{scene.topic}-value", schema, "JSON", schema_id=9)
    assert scene.run().reasons == {
        "schema 3 is AVRO, not JSON Schema": 1,
        "the registry has no schema 9": 1,
        "no zero byte and schema id at the beginning": 1,
        "id is not bigint": 1,
    }
    send(scene, [json_of(9, id=5)])
    scene.run()
    assert {row.id: row["at"] and row["at"].hour for row in scene.rows()} == {1: 10, 5: None}
    assert scene.verify().is_clean


def following(scene: Scene, evolution: Evolution = Evolution.ADDITIVE) -> None:
    """Let the table follow the JSON Schemas of the topic."""
    scene.pipeline = attrs.evolve(
        scene.pipeline,
        value=ValueFormat(format=Format.JSON_REGISTRY, schema="latest"),
        table=attrs.evolve(scene.pipeline.table, evolution=evolution),
    )


def test_table_follows_json_schemas(scene: Scene, registry: SchemaRegistry) -> None:
    """New fields become columns at any depth; another type stops the run before it writes."""
    following(scene)
    subject = f"{scene.topic}-value"
    with pytest.raises(Refusal, match="has no subject"):
        scene.run()
    who = {"type": "object", "properties": {"name": TEXT}}
    registry.register(subject, schema_of(id=INTEGER, who=who), "JSON", schema_id=1)
    registry.register("others", ORDER, schema_id=3)
    send(scene, [json_of(1, id=1, who={"name": "ann"}), json_of(3, id=8), b"{}"])
    assert scene.run().reasons == {
        "schema 3 is AVRO, not JSON Schema": 1,
        "no zero byte and schema id at the beginning": 1,
    }
    who = {"type": "object", "properties": {"age": INTEGER, "name": TEXT}}
    registry.register(subject, schema_of(id=INTEGER, x=TEXT, who=who), "JSON", schema_id=2)
    send(scene, [json_of(2, id=2, x="b", who={"name": "bob", "age": 5}), json_of(1, id=3)])
    assert scene.run().rows == 2
    rows = {row.id: row for row in scene.rows()}
    assert {key: (row.x, row.who and row.who.asDict()) for key, row in rows.items()} == {
        1: (None, {"name": "ann", "age": None}),
        2: ("b", {"name": "bob", "age": 5}),
        3: (None, None),
    }
    assert scene.verify().is_clean
    registry.register(subject, schema_of(id=TEXT, x=TEXT, who=who), "JSON", schema_id=4)
    send(scene, [json_of(4, id="four")])
    with pytest.raises(Refusal, match="id is bigint in the table and string in the rows"):
        scene.run()
    assert len(scene.rows()) == 3


@pytest.mark.long
def test_half_done_batch_keeps_the_schema_that_it_began_with(
    scene: Scene, registry: SchemaRegistry
) -> None:
    """The same run then changes to the newer one, by which the record would be a dead letter."""
    following(scene)
    subject = f"{scene.topic}-value"
    registry.register(subject, schema_of(id=INTEGER), "JSON", schema_id=1)
    send(scene, [json_of(1, id=1, x="no number"), with_id(1, b"{")])
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    registry.register(subject, schema_of(id=INTEGER, x=INTEGER), "JSON", schema_id=2)
    send(scene, [json_of(2, id=2, x=7), json_of(1, id=3, x="no number")])
    assert scene.run().reasons == {"not JSON": 1, "x is not bigint": 1}
    assert {row.id: row.x for row in scene.rows()} == {1: None, 2: 7}
    assert len(scene.letters()) == 2


@pytest.mark.long
def test_batch_of_which_nothing_is_written_gets_the_newest_schema(
    scene: Scene, registry: SchemaRegistry
) -> None:
    """Else the fields that a schema added while no run was up would be lost."""
    following(scene)
    registry.register(f"{scene.topic}-value", schema_of(id=INTEGER), "JSON", schema_id=1)
    send(scene, [json_of(1, id=1)])
    with pytest.raises(Crash):
        scene.run(crash=Place.BEFORE_TABLE)
    newer = schema_of(id=INTEGER, x=INTEGER)
    registry.register(f"{scene.topic}-value", newer, "JSON", schema_id=2)
    send(scene, [json_of(2, id=2, x=7)])
    scene.run()
    assert {row.id: row.x for row in scene.rows()} == {1: None, 2: 7}
    assert scene.verify().is_clean
