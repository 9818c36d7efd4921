"""Thousands of small batches: neither time nor files, their metadata or the driver's memory grow.

``KWIRE_BATCHES`` is their number, a multiple of 500. The figures of each 500 are printed.
``KWIRE_BATCHES_FOLDER`` lets a run of hours be interrupted: it holds the broker's data, the tables,
the checkpoint and the figures so far, and the next run with the same folder continues from there.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker, make_broker
from compat_tests.pipeline.scene import Scene
from kwire_pipeline.commands.maintain import maintain_tables
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.storage import jvm_of

BATCHES = int(os.environ.get("KWIRE_BATCHES", "3000"))
TOPIC = "small-batches"
TABLE = "shop.small_batches"
IN_BATCH = 2
"""The records of a batch."""
BETWEEN_MAINTENANCE = 500
LAST = BETWEEN_MAINTENANCE // 5
"""The number of batches before each maintenance whose times count."""
GROWTH = 2.0
"""The largest growth of a figure; what grows with each batch grows by more."""


@attrs.define
class Times:
    """The moments at which batches come to their tables."""

    moments: list[float] = attrs.field(factory=list)

    def reach(self, place: Place) -> None:
        if place is Place.BEFORE_TABLE:
            self.moments.append(time.monotonic())

    def middle_ms(self) -> int:
        """Return the median duration of the last batches."""
        durations = [later - earlier for earlier, later in pairwise(self.moments[-LAST:])]
        return round(statistics.median(durations) * 1000)


@attrs.frozen
class Figures:
    """The state after maintenance."""

    batch_ms: int
    """The median time of the last batches before it."""
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
            f"{self.batch_ms} ms a batch, {self.files} files, {self.metadata_bytes / 1e6:.2f} MB "
            f"of metadata, heap {self.heap_bytes / 1e6:.0f} MB, Python "
            f"{self.python_bytes / 1e6:.0f} MB"
        )


@attrs.frozen
class Course:
    """The figures so far, in a file, one line of JSON for each 500 batches."""

    file: Path

    def figures(self) -> list[Figures]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [Figures(**json.loads(line)) for line in lines]

    def add(self, figures: Figures) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(attrs.asdict(figures)) + "\n")


def session_with(spark: SparkSession, warehouse: Path) -> SparkSession:
    """Return a session of the same JVM whose catalog has its own warehouse."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.kwire.warehouse", str(warehouse))
    return session


def figures_of(spark: SparkSession, table: Path, checkpoint: Path, batch_ms: int) -> Figures:
    paths = [p for folder in (table, checkpoint) for p in folder.rglob("*") if p.is_file()]
    java = jvm_of(spark).java
    for _ in range(2):  # Spark's cleaner drops what the first collection has found.
        java.lang.System.gc()
        time.sleep(1)
    runtime = java.lang.Runtime.getRuntime()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Figures(
        batch_ms=batch_ms,
        files=len(paths),
        metadata_bytes=sum(p.stat().st_size for p in paths if p.suffix != ".parquet"),
        heap_bytes=runtime.totalMemory() - runtime.freeMemory(),
        python_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
    )


@attrs.frozen
class Months:
    """A pipeline whose batches are counted by the records in its topic."""

    scene: Scene
    course: Course
    warehouse: Path

    @classmethod
    def open(cls, spark: SparkSession, broker: Broker, folder: Path) -> Months:
        warehouse = folder / "warehouse"
        scene = Scene(session_with(spark, warehouse), broker, TOPIC, folder)
        scene.with_limit(IN_BATCH)
        pipeline = scene.pipeline
        expire_all = attrs.evolve(
            pipeline.maintenance, keep_snapshots=1, orphans_after=datetime.timedelta(days=60)
        )
        scene.pipeline = attrs.evolve(
            pipeline,
            table=attrs.evolve(pipeline.table, name=TABLE),
            dead_letters=attrs.evolve(pipeline.dead_letters, table=f"{TABLE}_dead"),
            maintenance=expire_all,
        )
        return cls(scene, Course(folder / "figures"), warehouse)

    def end_of_topic(self) -> int:
        """Return the number of records in the topic, which is created unless it exists."""
        partition = TopicPartition(TOPIC, 0)
        consumer = KafkaConsumer(bootstrap_servers=self.scene.broker.address)
        try:
            if TOPIC not in consumer.topics():
                self.scene.create_topic(1)
            return int(consumer.end_offsets([partition])[partition])
        finally:
            consumer.close()

    def work(self, first: int) -> None:
        """Run the next batches, then maintain the tables as a user would each day."""
        end = (first + BETWEEN_MAINTENANCE) * IN_BATCH
        self.scene.produce(range(self.end_of_topic(), end), partition=0)
        times = Times()
        self.scene.run(faults=times)
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
        maintain_tables(self.scene.spark, self.scene.pipeline, later)
        table = self.warehouse / self.scene.pipeline.table.name.replace(".", "/")
        checkpoint = self.scene.folder / "checkpoint"
        figures = figures_of(self.scene.spark, table, checkpoint, times.middle_ms())
        self.course.add(figures)
        print(f"{first + BETWEEN_MAINTENANCE} batches: {figures}", flush=True)


@pytest.mark.long
@pytest.mark.usefixtures("patience")
def test_time_files_and_memory_of_small_batches_are_bounded(
    spark: SparkSession, broker_kind: str, tmp_path: Path
) -> None:
    """Maintenance comes between, as a user would run it each day."""
    folder = Path(os.environ.get("KWIRE_BATCHES_FOLDER", tmp_path))
    broker = make_broker(broker_kind, folder / "broker")
    try:
        months = Months.open(spark, broker, folder)
        done = len(months.course.figures()) * BETWEEN_MAINTENANCE
        for first in range(done, BATCHES, BETWEEN_MAINTENANCE):
            months.work(first)
        measured = months.course.figures()
        for name in attrs.fields_dict(Figures):
            sizes = [getattr(each, name) for each in measured]
            assert sizes[-1] < GROWTH * sizes[0], (name, sizes)
        months.scene.check_each_once(range(BATCHES * IN_BATCH))
        assert months.scene.verify().is_clean
    finally:
        broker.close()
