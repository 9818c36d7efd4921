"""Keys and values of every format become columns; what does not fit is kept and explained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import Scene
from kwire_pipeline.config.values import Evolution


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
