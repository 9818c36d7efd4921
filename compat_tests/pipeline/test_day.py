"""The page of a pipeline's day, made from real tables, checkpoints and brokers."""

from __future__ import annotations

import datetime
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import Scene
from kwire_pipeline.commands.run import noting
from kwire_pipeline.commands.status import Report
from kwire_pipeline.config.values import TableFormat
from kwire_pipeline.day.history import read_day
from kwire_pipeline.engine.query import Control
from kwire_pipeline.errors import Failure
from kwire_pipeline.many.notes import PROBLEMS


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Scene:
    chosen = Scene(spark, broker, topic, tmp_path)
    chosen.create_topic()
    return chosen


def page_of(scene: Scene) -> ElementTree.Element:
    """Return the page that `status --page` writes for the pipeline."""
    report = Report(scene.pipeline, as_json=True, has_page=True)
    report.show_only(scene.spark, scene.pipeline)
    path = scene.folder / "day.html"
    report.write_page(path)
    return ElementTree.fromstring(path.read_text())


def cells(root: ElementTree.Element, kind: str) -> list[list[str]]:
    rows = root.findall(f".//table[@class='{kind}']/tbody/tr")
    return [["".join(cell.itertext()) for cell in row] for row in rows]


def test_page_shows_the_batches_of_a_run(scene: Scene, spark: SparkSession) -> None:
    """Two batches of 20 records with 2 misfits each; 10 records are not read, one batch is gone."""
    scene.with_limit(20)
    scene.produce(range(40))
    scene.run()
    scene.produce(range(40, 50))
    (row,) = cells(page_of(scene), "overview")
    assert row[:6] == [scene.pipeline.table.name, scene.topic, "fine", "36", "4", "10"]
    now = datetime.datetime.now(datetime.UTC)
    day = read_day(spark, scene.pipeline, now)
    assert [(batch.rows, batch.letters, batch.ranges.count) for batch in day.batches] == [
        (18, 2, 20),
        (18, 2, 20),
    ]
    assert all(batch.seconds is not None and 0 < batch.seconds < 300 for batch in day.batches)
    assert day.reasons == {"not JSON": 4}
    assert (day.since, day.steps_since, day.lags[now]) == (None, None, 10)
    assert sum(hour.rows or 0 for hour in day.hours()) == 36
    # Read a day later, the batches are history, and the ten records have waited all the time.
    tomorrow = read_day(spark, scene.pipeline, now + datetime.timedelta(hours=25))
    assert (tomorrow.rows, tomorrow.letters, tomorrow.reasons) == (0, 0, {})
    assert set(tomorrow.lags.values()) == {10}
    newest = spark.sql(f"SELECT snapshot_id FROM kwire.{scene.pipeline.table.name}.snapshots")
    first = newest.collect()[0][0]
    spark.sql(
        "CALL kwire.system.expire_snapshots("
        f"table => '{scene.pipeline.table.name}', snapshot_ids => ARRAY({first}))"
    )
    cut = read_day(spark, scene.pipeline, now)
    assert cut.since is not None
    assert [batch.rows for batch in cut.batches] == [None, 18]


@pytest.mark.long
def test_parquet_keeps_no_history_so_the_checkpoint_counts(
    scene: Scene, spark: SparkSession, tmp_path: Path
) -> None:
    table = attrs.evolve(
        scene.pipeline.table,
        format=TableFormat.PARQUET,
        warehouse=str(tmp_path / "lake"),
        partition_by=(),
    )
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.with_limit(20)
    scene.produce(range(40))
    scene.run()
    day = read_day(spark, scene.pipeline, datetime.datetime.now(datetime.UTC))
    assert (day.rows, day.letters, day.offsets) == (None, None, 40)
    assert len([batch for batch in day.batches if batch.seconds]) == 2


def test_status_shows_why_a_run_failed_until_another_one_writes(
    scene: Scene, spark: SparkSession
) -> None:
    """A pipeline that has never run has no place for the reason."""
    note = scene.folder / "checkpoint" / PROBLEMS

    def fail() -> None:
        with pytest.raises(Failure), noting(spark, scene.pipeline, Control()):
            raise Failure("the catalog is away")

    fail()
    assert not note.exists()
    scene.produce(range(10))
    scene.run()
    fail()
    (row,) = cells(page_of(scene), "overview")
    assert row[2] == "failed"
    with noting(spark, scene.pipeline, Control()) as control:
        assert note.exists()
        control.report(scene.batches[0])
        assert not note.exists()
    fail()
    with noting(spark, scene.pipeline, Control()):
        pass
    assert not note.exists()
