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
    Format,
    Mode,
    TableFormat,
    Tombstones,
)
from kwire_pipeline.engine.by_key.key_proof import KeyProof
from kwire_pipeline.engine.faults import Place
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


@pytest.mark.parametrize(
    "format", [TableFormat.ICEBERG, pytest.param(TableFormat.DELTA, marks=pytest.mark.long)]
)
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
