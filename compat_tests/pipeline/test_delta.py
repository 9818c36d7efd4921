"""Tables of Delta: each record once, by the marks of Delta's own log."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import attrs
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import CRASHES, Crash, Scene
from kwire_pipeline.commands.maintain import maintain_tables
from kwire_pipeline.commands.replay import replay_letters
from kwire_pipeline.commands.status import read_status
from kwire_pipeline.config.model import ValueFormat
from kwire_pipeline.config.values import Evolution, Mode, TableFormat
from kwire_pipeline.day.history import read_day
from kwire_pipeline.engine.by_key.key_proof import KeyProof
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.shape_and_tables import destinations_of
from kwire_pipeline.errors import Refusal

MONTH = datetime.timedelta(days=30)


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Scene:
    chosen = Scene(spark, broker, topic, tmp_path)
    chosen.create_topic()
    table = attrs.evolve(
        chosen.pipeline.table, format=TableFormat.DELTA, warehouse=str(tmp_path / "lake")
    )
    chosen.pipeline = attrs.evolve(chosen.pipeline, table=table)
    return chosen


def folder(scene: Scene) -> Path:
    return scene.folder / "lake" / scene.pipeline.table.name.replace(".", "/")


def batches(scene: Scene) -> list[Row]:
    """Return the versions of the table that a batch has made."""
    history = scene.spark.sql(f"DESCRIBE HISTORY delta.`{folder(scene)}`")
    return history.where(F.col("userMetadata").contains("kwire.batch-id")).collect()


def check_position_needs_no_query(scene: Scene) -> None:
    """Assert that the last batch and its pipeline are known without a query over Delta's log."""
    table = destinations_of(scene.spark, scene.pipeline).table
    scene.spark.sparkContext.setJobGroup("position", "")
    (pipeline_id,) = table.owners().values()
    assert table.last_batch(pipeline_id) == 1
    assert table.last_batch("other") is None
    assert task_counts(scene.spark, "position") == []


@pytest.mark.parametrize("place", CRASHES)
def test_run_that_ends_in_a_batch_is_continued_without_loss_or_repetition(
    scene: Scene, place: Place
) -> None:
    scene.produce(range(40))
    with pytest.raises(Crash):
        scene.run(crash=place)
    scene.produce(range(40, 60))
    scene.run()
    assert scene.batches[0].is_repeated == (place is not Place.BEFORE_TABLE)
    check_position_needs_no_query(scene)
    scene.check_each_once(range(60))
    assert len(batches(scene)) == 2
    assert sorted(path.name for path in folder(scene).glob("at_day=*")) == [
        f"at_day=2026-11-{day:02d}" for day in (1, 2, 3)
    ]
    proof = scene.verify()
    assert (proof.is_clean, proof.records) == (True, 60)


@pytest.mark.long
def test_table_that_was_restored_is_refused_and_adopted(scene: Scene) -> None:
    """Delta keeps the transactions of the versions that RESTORE undid."""
    for numbers in (range(20), range(20, 40)):
        scene.produce(numbers)
        scene.run()
    letters = scene.pipeline.dead_letters.table or ""
    for path in (folder(scene), scene.folder / "lake" / letters.replace(".", "/")):
        history = scene.spark.sql(f"DESCRIBE HISTORY delta.`{path}`")
        (last,) = history.agg(F.max("version")).collect()[0]
        scene.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {last - 1}")
    scene.check_each_once(range(20))
    with pytest.raises(Refusal, match="no longer has batch 1"):
        scene.run()
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(40))
    scene.produce(range(40, 60))
    scene.run()
    scene.check_each_once(range(60))


@pytest.mark.parametrize(
    "kind", [pytest.param(TableFormat.DELTA, marks=pytest.mark.long), TableFormat.PARQUET]
)
def test_partitions_of_a_table_do_not_change(scene: Scene, kind: TableFormat) -> None:
    """Readers of Parquet would leave out the rows that are outside of the newer folders."""
    table = attrs.evolve(scene.pipeline.table, format=kind)
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.produce(range(10))
    scene.run()
    scene.produce(range(10, 20))
    unlike = attrs.evolve(table, partition_by=())
    scene.pipeline = attrs.evolve(scene.pipeline, table=unlike)
    with pytest.raises(Refusal, match=r"has the partitions \[at_day\], and this file has \[\]"):
        scene.run()
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.run()
    scene.check_each_once(range(20))


@pytest.mark.long
@pytest.mark.parametrize("place", CRASHES[:2])
def test_changes_by_key_are_applied_once(scene: Scene, place: Place) -> None:
    """The records of both halves have the same keys; the later half counts."""
    table = attrs.evolve(scene.pipeline.table, mode=Mode.UPSERT, keys=("id",))
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.produce(range(20))
    with pytest.raises(Crash):
        scene.run(crash=place)
    scene.produce(range(10))
    scene.run()
    assert scene.batches[0].is_repeated == (place is Place.AFTER_TABLE)
    assert len(batches(scene)) == 2
    rows = {row.id: row.kafka_offset for row in scene.rows()}
    assert rows == {n: n // 2 + (10 if n < 10 else 0) for n in range(20) if n % 10 != 9}
    proof = scene.verify()
    assert isinstance(proof, KeyProof)
    assert (proof.is_clean, proof.current, proof.letters.once) == (True, 18, 3)


@pytest.mark.long
def test_checkpoint_belongs_to_one_table_of_delta(scene: Scene) -> None:
    scene.produce(range(20))
    scene.run()
    checkpoint = scene.folder / "checkpoint"
    shutil.copytree(checkpoint, scene.folder / "kept")
    scene.lose_checkpoint()
    with pytest.raises(Refusal, match="there is no checkpoint"):
        scene.run()
    scene.produce(range(20, 40))
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(40))
    shutil.rmtree(checkpoint)
    shutil.copytree(scene.folder / "kept", checkpoint)
    with pytest.raises(Refusal, match="with another checkpoint"):
        scene.run()
    shutil.rmtree(folder(scene))
    with pytest.raises(Refusal, match="no longer exists"):
        scene.run()


@pytest.mark.long
def test_maintenance_of_delta_keeps_the_marks(scene: Scene, spark: SparkSession) -> None:
    """After vacuum and a checkpoint of the log, a batch that is there is not written again."""
    scene.with_limit(20)
    scene.produce(range(60))
    scene.run()
    keep = attrs.evolve(
        scene.pipeline.maintenance, orphans_after=MONTH - datetime.timedelta(hours=1)
    )
    scene.pipeline = attrs.evolve(scene.pipeline, maintenance=keep)
    scene.produce(range(60, 80))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_DEAD_LETTERS)
    later = datetime.datetime.now(datetime.UTC) + MONTH
    with pytest.raises(Refusal, match="half done"):
        maintain_tables(spark, scene.pipeline, later)
    for name in (scene.pipeline.table.name, scene.pipeline.dead_letters.table or ""):
        place = scene.folder / "lake" / name.replace(".", "/")
        spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.checkpointInterval' = 1)")
        spark.sql(f"OPTIMIZE delta.`{place}`")
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        spark.sql(f"VACUUM delta.`{place}` RETAIN 0 HOURS")
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        for log in (place / "_delta_log").glob("*.json"):
            if int(log.stem) < max(int(c.name[:20]) for c in log.parent.glob("0*.checkpoint*")):
                log.unlink()
    scene.run()
    assert scene.batches[-1].is_repeated
    spark.sparkContext.setJobGroup("maintain", "")
    lines = maintain_tables(spark, scene.pipeline, later)
    assert any("files became" in line for line in lines)
    assert max(task_counts(spark, "maintain")) < 100
    scene.check_each_once(range(80))
    assert scene.verify().is_clean
    status = read_status(spark, scene.pipeline)
    assert (status.rows, status.lag, status.batch_id) == (72, 0, 3)


@pytest.mark.long
def test_versions_of_delta_are_the_history_of_a_day(scene: Scene, spark: SparkSession) -> None:
    scene.with_limit(20)
    scene.produce(range(40))
    scene.run()
    day = read_day(spark, scene.pipeline, datetime.datetime.now(datetime.UTC))
    assert [(batch.rows, batch.letters, batch.ranges.count) for batch in day.batches] == [
        (18, 2, 20),
        (18, 2, 20),
    ]
    assert day.since is None


def task_counts(spark: SparkSession, group: str) -> list[int]:
    """Return the number of tasks of each stage of a group of jobs."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(number) for job in jobs if job for number in job.stageIds]
    return [stage.numTasks for stage in stages if stage]


@pytest.mark.long
def test_letters_that_fit_today_move_to_a_table_of_delta(scene: Scene, spark: SparkSession) -> None:
    """The schema gets wider types and a new column."""
    wide = scene.pipeline
    narrow = ValueFormat(schema="id TINYINT NOT NULL, at TIMESTAMP")
    scene.pipeline = attrs.evolve(wide, value=narrow)
    scene.produce(range(120, 140))
    assert scene.run().dead_letters == 12
    scene.pipeline = wide
    with pytest.raises(Refusal, match="lacks wider columns"):
        scene.run()
    table = attrs.evolve(wide.table, evolution=Evolution.WIDEN)
    scene.pipeline = attrs.evolve(wide, table=table)
    scene.produce(range(140, 150))
    scene.run()
    assert replay_letters(spark, scene.pipeline) == (10, 3)
    scene.check_each_once(range(120, 150))
    assert {row.name for row in scene.rows()} >= {"n130", "n140", None}
    assert scene.verify().is_clean


@pytest.mark.long
def test_run_from_the_start_replaces_the_rows_of_delta(scene: Scene) -> None:
    scene.produce(range(20))
    scene.run()
    scene.run(Intent.FROM_START)
    scene.check_each_once(range(20))
