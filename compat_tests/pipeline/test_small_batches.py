"""Thousands of small batches: neither time nor files, their metadata or the driver's memory grow.

``KWIRE_BATCHES`` is their number, a multiple of 500. The figures of each 500 are printed.
"""

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
from kwire_pipeline.engine.storage import jvm_of

BATCHES = int(os.environ.get("KWIRE_BATCHES", "3000"))
IN_BATCH = 2
"""The records of a batch."""
BETWEEN_MAINTENANCE = 500
EDGE = BETWEEN_MAINTENANCE // 5
"""The count of batches whose times are compared: the last ones with the second as many."""
GROWTH = 2.0
"""The largest growth of a figure; what grows with each batch grows by more."""


@attrs.define
class Times:
    """The moments at which batches come to their tables."""

    moments: list[float] = attrs.field(factory=list)

    def reach(self, place: Place) -> None:
        if place is Place.BEFORE_TABLE:
            self.moments.append(time.monotonic())

    def durations(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.moments)]


@attrs.frozen
class Figures:
    """The state after maintenance."""

    files: int
    """The files of the table and of the checkpoint."""
    metadata_bytes: int
    """The bytes of these files, without the rows."""
    heap_bytes: int
    """The live objects of Spark's driver."""
    python_bytes: int
    """The resident memory of the driver's Python."""

    def __str__(self) -> str:
        return (
            f"{self.files} files, {self.metadata_bytes / 1e6:.2f} MB of metadata, heap "
            f"{self.heap_bytes / 1e6:.0f} MB, Python {self.python_bytes / 1e6:.0f} MB"
        )


def figures_of(spark: SparkSession, table: Path, checkpoint: Path) -> Figures:
    paths = [p for folder in (table, checkpoint) for p in folder.rglob("*") if p.is_file()]
    java = jvm_of(spark).java
    for _ in range(2):  # Spark's cleaner drops what the first collection has found.
        java.lang.System.gc()
        time.sleep(1)
    runtime = java.lang.Runtime.getRuntime()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Figures(
        files=len(paths),
        metadata_bytes=sum(p.stat().st_size for p in paths if p.suffix != ".parquet"),
        heap_bytes=runtime.totalMemory() - runtime.freeMemory(),
        python_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
    )


@pytest.mark.long
@pytest.mark.usefixtures("patience")
def test_time_files_and_memory_of_small_batches_are_bounded(
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
    figures: list[Figures] = []
    for first in range(0, BATCHES, BETWEEN_MAINTENANCE):
        numbers = range(first * IN_BATCH, (first + BETWEEN_MAINTENANCE) * IN_BATCH)
        scene.produce(numbers, partition=0)
        times = Times()
        assert scene.run(faults=times).batches == BETWEEN_MAINTENANCE
        durations += times.durations()
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
        maintain_tables(spark, scene.pipeline, later)
        figures.append(figures_of(spark, table, scene.folder / "checkpoint"))
        middle_s = statistics.median(durations[-EDGE:])
        print(f"{len(durations)} batches: {middle_s:.3f} s a batch, {figures[-1]}", flush=True)
    early = statistics.median(durations[EDGE : 2 * EDGE])
    late = statistics.median(durations[-EDGE:])
    assert late < early * GROWTH, (early, late)
    for name in attrs.fields_dict(Figures):
        sizes = [getattr(each, name) for each in figures]
        assert sizes[-1] < GROWTH * sizes[0], (name, sizes)
    scene.check_each_once(range(BATCHES * IN_BATCH))
    assert scene.verify().is_clean
