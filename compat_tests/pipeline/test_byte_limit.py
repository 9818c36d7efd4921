"""A limit in bytes: batches adapt to the size of records, and each record is written once."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import Scene
from kwire_pipeline.config.model import Limits
from kwire_pipeline.engine.proof import Proof
from kwire_pipeline.pace import FIRST_OFFSETS, TOLERANCE

MAX_BYTES = 30_000


@pytest.mark.long
def test_batches_after_the_first_keep_to_the_bytes(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The second run knows the size of records from the first one."""
    scene = Scene(spark, broker, topic, tmp_path)
    scene.create_topic()
    scene.pipeline = attrs.evolve(scene.pipeline, limits=Limits(max_bytes_per_trigger=MAX_BYTES))
    scene.produce(range(2200))
    tally = scene.run()
    first, *others = scene.batches
    assert first.offsets == FIRST_OFFSETS
    assert first.bytes > MAX_BYTES * TOLERANCE
    assert len(others) >= 2
    assert all(batch.bytes <= MAX_BYTES * TOLERANCE for batch in others)
    assert others[0].bytes > MAX_BYTES / 2
    assert tally.offsets == 2200
    scene.batches.clear()
    scene.produce(range(2200, 3000))
    scene.run()
    assert len(scene.batches) >= 2
    assert all(batch.bytes <= MAX_BYTES * TOLERANCE for batch in scene.batches)
    scene.check_each_once(range(3000))
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert proof.is_clean
