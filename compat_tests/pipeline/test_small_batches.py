"""Thousands of small batches: neither the time of a batch nor the count of files grows."""

from __future__ import annotations

import datetime
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import Scene
from kwire_pipeline.commands.maintain import maintain_tables
from kwire_pipeline.engine.faults import Place

BATCHES = int(os.environ.get("KWIRE_BATCHES", "3000"))
IN_BATCH = 2
"""The records of a batch."""
BETWEEN_MAINTENANCE = BATCHES // 6
EDGE = BATCHES // 30
"""The count of batches whose times are compared: the last ones with the second as many."""
GROWTH = 2.0
"""The largest growth of a batch's median time; what grows with each batch grows by more."""


@attrs.define
class Times:
    """The moments at which batches come to their tables."""

    moments: list[float] = attrs.field(factory=list)

    def reach(self, place: Place) -> None:
        if place is Place.BEFORE_TABLE:
            self.moments.append(time.monotonic())

    def durations(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.moments)]


def count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


@pytest.mark.long
@pytest.mark.usefixtures("patience")
def test_time_and_files_of_small_batches_are_bounded(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Maintenance comes between, as a user would run it each day."""
    scene = Scene(spark, broker, topic, tmp_path)
    scene.create_topic(1)
    scene.with_limit(IN_BATCH)
    expire_all = attrs.evolve(
        scene.pipeline.maintenance, keep_snapshots=1, orphans_after=datetime.timedelta(days=60)
    )
    scene.pipeline = attrs.evolve(scene.pipeline, maintenance=expire_all)
    warehouse = spark.conf.get("spark.sql.catalog.kwire.warehouse")
    assert warehouse is not None
    table = Path(warehouse) / scene.pipeline.table.name.replace(".", "/")
    durations: list[float] = []
    files: list[int] = []
    for first in range(0, BATCHES, BETWEEN_MAINTENANCE):
        numbers = range(first * IN_BATCH, (first + BETWEEN_MAINTENANCE) * IN_BATCH)
        scene.produce(numbers, partition=0)
        times = Times()
        assert scene.run(faults=times).batches == BETWEEN_MAINTENANCE
        durations += times.durations()
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
        maintain_tables(spark, scene.pipeline, later)
        files.append(count_files(table) + count_files(scene.folder / "checkpoint"))
        print(f"{statistics.median(durations[-EDGE:]):.3f} s a batch, {files[-1]} files")
    early = statistics.median(durations[EDGE : 2 * EDGE])
    late = statistics.median(durations[-EDGE:])
    assert late < early * GROWTH, (early, late)
    assert files[-1] < 2 * files[0], files
    scene.check_each_once(range(BATCHES * IN_BATCH))
    assert scene.verify().is_clean
