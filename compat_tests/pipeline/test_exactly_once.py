"""Each record is in the table or in the dead letters once, whatever ends a run, and whenever."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import CRASHES, TASKS, Crash, Scene
from kwire_pipeline.commands.replay import replay_letters
from kwire_pipeline.config.model import DeadLetters, Expectation
from kwire_pipeline.config.values import Evolution, Start
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.lease import FILE, Holder
from kwire_pipeline.engine.proof import Proof
from kwire_pipeline.engine.shape_and_tables import destinations_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.tables.iceberg import IcebergTable
from kwire_pipeline.tables.table import Mark

CHECKSUM = 7145867457329436511


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Scene:
    chosen = Scene(spark, broker, topic, tmp_path)
    chosen.create_topic()
    return chosen


@pytest.mark.parametrize("place", CRASHES)
def test_run_that_ends_in_a_batch_is_continued_without_loss_or_repetition(
    scene: Scene, place: Place
) -> None:
    scene.produce(range(40))
    with pytest.raises(Crash):
        scene.run(crash=place)
    scene.produce(range(40, 60))
    tally = scene.run()
    assert tally.batches == 2
    assert scene.batches[0].is_repeated == (place is not Place.BEFORE_TABLE)
    assert (tally.rows, tally.dead_letters, tally.reasons) == (54, 6, {"not JSON": 6})
    scene.check_each_once(range(60))
    assert scene.snapshots() == 2
    jobs = job_count(scene)
    assert scene.run().batches == 0
    assert job_count(scene) == jobs, "a run that finds nothing new takes no job of Spark"


def job_count(scene: Scene) -> int:
    """Return the number of jobs that Spark has started."""
    return int(scene.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def test_half_done_batch_is_finished_by_the_file_that_began_it(scene: Scene) -> None:
    """Under another expectation, rows that the table has would be dead letters as well."""
    former = scene.pipeline
    text = attrs.evolve(former.value, schema="id BIGINT NOT NULL, name STRING, at STRING")
    late = attrs.evolve(former, expectations={"late": Expectation(check="id > 10")})
    scene.produce(range(20))
    scene.pipeline = late
    with pytest.raises(Crash):
        scene.run(crash=Place.BEFORE_TABLE)
    scene.pipeline = former  # nothing is written: another file may finish the batch
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    for other in (
        late,
        attrs.evolve(former, value=text),
        attrs.evolve(former, dead_letters=DeadLetters(table="shop.others")),
    ):
        scene.pipeline = other
        check_refused(scene, "run once with the former file")
    scene.pipeline = former
    scene.run()
    scene.check_each_once(range(20))
    scene.pipeline = late
    assert scene.run().batches == 0


@pytest.mark.long
def test_half_done_batch_is_finished_by_the_transform_that_began_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transform with another body is another one, and so is one that imports another text."""
    body = "CONDITION = 'id {} 0'\n"
    file = scene.folder / "clean_condition.py"
    file.write_text(body.format(">="))
    (scene.folder / "clean_orders.py").write_text(
        "import clean_condition\n"
        "def clean(frame):\n    return frame.where(clean_condition.CONDITION)\n"
    )
    monkeypatch.syspath_prepend(scene.folder)
    scene.pipeline = attrs.evolve(scene.pipeline, transform="clean_orders:clean")
    scene.produce(range(20))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    file.write_text(body.format("<"))
    check_refused(scene, "run once with the former file")
    file.write_text(body.format(">="))
    scene.run()
    scene.check_each_once(range(20))
    file.write_text(body.format("<"))
    assert scene.run().batches == 0


@pytest.mark.long
def test_expectation_that_depends_on_the_time_is_refused_before_any_write(scene: Scene) -> None:
    """A rerun would find other dead letters in a batch that is half done."""
    scene.pipeline = attrs.evolve(
        scene.pipeline, expectations={"past": Expectation(check="at < current_timestamp()")}
    )
    scene.produce(range(20))
    with pytest.raises(Refusal, match="depends on more than the record"):
        scene.run()
    assert not (scene.folder / "checkpoint" / "pipeline.json").exists()
    past = {"past": Expectation(check="at < kafka_timestamp + INTERVAL 1 DAY")}
    scene.pipeline = attrs.evolve(scene.pipeline, expectations=past)
    scene.run()
    scene.check_each_once(range(20))


def test_rows_have_one_checksum_on_every_broker(scene: Scene) -> None:
    """kwire and Apache Kafka give the same rows, at the same offsets."""
    scene.produce(range(100))
    scene.run()
    columns = "id, name, at, kafka_partition, kafka_offset"
    table = f"kwire.{scene.pipeline.table.name}"
    (row,) = scene.spark.sql(
        f"SELECT count(*), bit_xor(xxhash64({columns})) FROM {table}"
    ).collect()
    assert tuple(row) == (90, CHECKSUM)


@pytest.mark.long
def test_expired_marks_do_not_repeat_a_batch(scene: Scene, spark: SparkSession) -> None:
    """Compaction and expiry between a crash and the rerun remove the snapshot with the mark."""
    scene.produce(range(20))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_DEAD_LETTERS)
    for name in (scene.pipeline.table.name, scene.pipeline.dead_letters.table):
        spark.sql(f"ALTER TABLE kwire.{name} SET TBLPROPERTIES ('other' = 'writer')")
        spark.sql(f"DELETE FROM kwire.{name} WHERE false")
        spark.sql(
            f"CALL kwire.system.rewrite_data_files(table => '{name}', "
            "options => map('rewrite-all', 'true'))"
        )
        spark.sql(
            f"CALL kwire.system.expire_snapshots(table => '{name}', retain_last => 1, "
            "older_than => current_timestamp())"
        )
    scene.run()
    scene.check_each_once(range(20))


@pytest.mark.long
def test_letters_of_another_pipeline_over_the_same_topic_are_no_proof(
    scene: Scene,
) -> None:
    scene.produce(range(20))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    first = scene.pipeline
    scene.pipeline = scene.other_pipeline()
    scene.run()
    scene.pipeline = first
    scene.run()
    assert len(scene.letters()) == 2 * 2
    proof = scene.verify()
    assert (proof.is_clean, proof.repeated) == (False, 2)
    assert "pipeline others writes topic" in proof.words()[1]
    scene.produce(range(20, 40))
    scene.lose_checkpoint()
    check_refused(scene, "there is no checkpoint")
    with pytest.raises(Refusal, match="pipeline others writes topic"):
        scene.run(Intent.ADOPT)


def test_batch_without_misfits_leaves_dead_letters_alone(scene: Scene, spark: SparkSession) -> None:
    scene.produce([1, 2, 3])
    scene.run()
    assert spark.table(f"kwire.{scene.pipeline.dead_letters.table}.snapshots").count() == 0


@pytest.mark.long
def test_another_pipeline_keeps_its_letters_of_the_same_topic(
    scene: Scene, spark: SparkSession
) -> None:
    """A new start, or a replay, would take the letters of both."""
    scene.produce(range(20))
    scene.run()
    first = scene.pipeline
    strict = {"strict": Expectation(check="id > 10")}
    scene.pipeline = attrs.evolve(scene.other_pipeline(), expectations=strict)
    scene.run()
    scene.pipeline = first
    letters = sorted(scene.letters())
    assert len(letters) == 2 + 12
    with pytest.raises(Refusal, match="its rows would be deleted with these"):
        scene.run(Intent.FROM_START)
    with pytest.raises(Refusal, match="replay is not possible"):
        replay_letters(spark, first)
    assert sorted(scene.letters()) == letters
    assert len(scene.rows()) == 18


def check_refused(scene: Scene, text: str) -> None:
    """Assert that a run is refused in one line and that the table keeps its snapshots."""
    before = scene.snapshots()
    with pytest.raises(Refusal, match=text) as refusal:
        scene.run()
    assert "\n" not in str(refusal.value)
    assert scene.snapshots() == before


@pytest.mark.long
def test_deleted_checkpoint_is_refused_and_adopted(scene: Scene) -> None:
    scene.produce(range(20))
    scene.run()
    scene.lose_checkpoint()
    scene.produce(range(20, 40))
    check_refused(scene, "there is no checkpoint")
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(40))


def test_rows_before_an_adoption_are_verified(scene: Scene, spark: SparkSession) -> None:
    scene.produce(range(20))
    scene.run()
    shutil.rmtree(next((scene.folder / "checkpoint").glob("spark-*")))
    scene.run(Intent.ADOPT)
    assert scene.verify().is_clean
    spark.sql(f"DELETE FROM kwire.{scene.pipeline.table.name} WHERE id = 4")
    assert scene.verify().missing == 1


def roll_back(scene: Scene, name: str) -> None:
    """Roll a table back to its first snapshot."""
    snapshots = scene.spark.table(f"kwire.{name}.snapshots").orderBy("committed_at")
    first = snapshots.first()
    assert first is not None
    snapshot_id = first["snapshot_id"]
    scene.spark.sql(f"CALL kwire.system.rollback_to_snapshot('{name}', {snapshot_id})")


def test_table_that_was_rolled_back_is_refused_and_adopted(scene: Scene) -> None:
    for numbers in (range(20), range(20, 40)):
        scene.produce(numbers)
        scene.run()
    roll_back(scene, scene.pipeline.table.name)
    check_refused(scene, "no longer has batch 1")
    with pytest.raises(Refusal, match="roll it back to the same time"):
        scene.run(Intent.ADOPT)
    roll_back(scene, scene.pipeline.dead_letters.table or "")
    scene.check_each_once(range(20))
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(40))
    scene.produce(range(40, 60))
    scene.run()
    scene.check_each_once(range(60))


def test_table_that_was_replaced_by_an_empty_one_is_refused(scene: Scene) -> None:
    """The file that says what was written may be gone, as it is read on a best-effort basis."""
    scene.produce(range(20))
    scene.run()
    name = f"kwire.{scene.pipeline.table.name}"
    columns = scene.spark.table(name).schema.toDDL()
    scene.spark.sql(f"CREATE OR REPLACE TABLE {name} ({columns}) USING iceberg")
    (scene.folder / "checkpoint" / "written.json").unlink()
    check_refused(scene, "no longer has batch 0")


@attrs.frozen
class Statement:
    """Faults that execute a statement before a batch is written, as another user may."""

    spark: SparkSession
    sql: str

    def reach(self, place: Place) -> None:
        if place is Place.BEFORE_TABLE:
            self.spark.sql(self.sql)


def test_values_of_a_column_that_is_dropped_during_a_run_are_not_left_out(scene: Scene) -> None:
    table = attrs.evolve(scene.pipeline.table, evolution=Evolution.ADDITIVE)
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.produce(range(20))
    scene.run()
    scene.produce(range(20, 40))
    name = f"kwire.{table.name}"
    with pytest.raises(Refusal, match=r"was changed during the run .*\(add name string\)"):
        scene.run(faults=Statement(scene.spark, f"ALTER TABLE {name} DROP COLUMN name"))
    scene.run()
    assert [row.name for row in scene.rows() if row.id >= 20].count(None) == 0
    scene.check_each_once(range(40))


@pytest.mark.long
def test_half_done_batch_that_was_rolled_back_is_not_taken_for_written(scene: Scene) -> None:
    scene.produce(range(20))
    scene.run()
    scene.produce(range(20, 40))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    roll_back(scene, scene.pipeline.table.name)
    check_refused(scene, "no longer has batch 1")
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(40))


def test_second_writer_of_a_batch_is_refused_by_the_table_itself(scene: Scene) -> None:
    """A run that was paused after it looked at the lease commits after its successor."""
    scene.produce(range(20))
    scene.run()
    scene.produce(range(20, 40))
    append, state_without = IcebergTable.append, IcebergTable._state_without

    def append_after_another(table: IcebergTable, frame: DataFrame, mark: Mark) -> None:
        def pause(paused: IcebergTable, mark: Mark) -> int | None:
            state = state_without(paused, mark)
            patch.undo()
            destinations_of(scene.spark, scene.pipeline).table.append(frame, mark)
            return state

        patch.setattr(IcebergTable, "_state_without", pause)
        append(table, frame, mark)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IcebergTable, "append", append_after_another)
        with pytest.raises(Failure, match="another run has written batch 1"):
            scene.run()
    scene.run()
    scene.check_each_once(range(40))
    snapshots = scene.spark.table(f"kwire.{scene.pipeline.table.name}.snapshots").collect()
    assert [row.operation for row in snapshots] == ["append", "append"]


@pytest.mark.long
def test_run_from_the_start_replaces_the_rows(scene: Scene) -> None:
    scene.produce(range(20))
    scene.run()
    scene.lose_checkpoint()
    scene.run(Intent.FROM_START)
    scene.check_each_once(range(20))


@pytest.mark.long
def test_run_from_the_start_that_ends_in_its_deletion_is_continued(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are deleted and the dead letters are not; no option is needed to go on."""
    scene.produce(range(20))
    scene.run()
    delete = IcebergTable.delete

    def delete_once(table: IcebergTable, topics: Sequence[str]) -> None:
        delete(table, topics)
        raise Crash("deletion")

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTable, "delete", delete_once)
        with pytest.raises(Crash):
            scene.run(Intent.FROM_START)
    assert scene.rows() == []
    with pytest.raises(Refusal, match="run without an option"):
        scene.run(Intent.ADOPT)
    scene.run()
    scene.check_each_once(range(20))
    scene.produce(range(20, 40))
    scene.run()
    scene.check_each_once(range(40))


@pytest.mark.long
def test_deleted_part_of_the_checkpoint_is_refused(scene: Scene) -> None:
    scene.produce(range(20))
    scene.run()
    (part,) = (scene.folder / "checkpoint").glob("spark-*")
    shutil.rmtree(part)
    check_refused(scene, "older or incomplete")


def test_topic_that_was_made_again_is_refused_and_adopted(
    scene: Scene, spark: SparkSession
) -> None:
    scene.produce(range(10))
    scene.run()
    scene.delete_topic()
    scene.create_topic()
    scene.produce(range(10, 30))
    check_refused(scene, "was deleted and recreated")
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(30))
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert proof.is_clean, proof.words()
    assert (proof.records, proof.once, proof.former) == (20, 20, 10)
    spark.sql(f"DELETE FROM kwire.{scene.pipeline.table.name} WHERE id = 10")
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert (proof.is_clean, proof.missing, proof.once) == (False, 1, 19)
    scene.lose_checkpoint()
    with pytest.raises(Refusal, match="rows of an earlier topic"):
        scene.run(Intent.ADOPT)


@pytest.mark.long
def test_table_that_was_made_again_is_refused(scene: Scene, spark: SparkSession) -> None:
    scene.produce(range(10))
    scene.run()
    name = f"kwire.{scene.pipeline.table.name}"
    spark.sql(f"DROP TABLE {name}")
    with pytest.raises(Refusal, match="no longer exists"):
        scene.run()
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING iceberg")
    check_refused(scene, "was dropped and recreated")


def test_second_pipeline_of_one_name_into_one_table_is_refused(scene: Scene) -> None:
    scene.produce(range(10))
    scene.run()
    first = scene.pipeline
    scene.pipeline = attrs.evolve(first, checkpoint=str(scene.folder / "other"))
    check_refused(scene, "there is no checkpoint in")
    scene.pipeline = first
    scene.run()
    scene.check_each_once(range(10))


def test_second_run_at_the_same_time_is_refused(scene: Scene) -> None:
    """The second run comes while the first one writes a batch."""
    scene.produce(range(10))

    class RunAgain:
        refusal = ""

        def reach(self, place: Place) -> None:
            if place is Place.BEFORE_TABLE and not self.refusal:
                with pytest.raises(Refusal) as refusal:
                    scene.run()
                self.refusal = str(refusal.value)

    again = RunAgain()
    scene.run(faults=again)
    assert "is using the checkpoint" in again.refusal
    scene.check_each_once(range(10))


def test_run_that_lost_its_lease_while_it_counted_writes_nothing(scene: Scene) -> None:
    """A run of another host took the lease over while this one was paused."""
    scene.produce(range(10))

    class TakeOver:
        def reach(self, place: Place) -> None:
            if place is Place.BEFORE_TABLE:
                other = attrs.evolve(Holder.this_process(), host="other")
                Folder(scene.spark, scene.pipeline.checkpoint).write(FILE, other.dump())

    with pytest.raises(Failure, match="another run has taken over the checkpoint"):
        scene.run(faults=TakeOver())
    assert scene.rows() == scene.letters() == []
    (scene.folder / "checkpoint" / FILE).unlink()
    scene.run()
    scene.check_each_once(range(10))


def test_latest_start_is_resolved_once_for_rows_and_misfits(scene: Scene) -> None:
    """Records produced after the first run began are read, though that run had nothing to write."""
    scene.produce(range(20))
    source = attrs.evolve(scene.pipeline.source, start=Start(at_end=True))
    scene.pipeline = attrs.evolve(scene.pipeline, source=source)
    scene.run()
    scene.produce(range(20, 40))
    scene.run()
    scene.check_each_once(range(20, 40))


def test_too_many_misfits_are_refused_before_anything_is_written(
    scene: Scene, spark: SparkSession
) -> None:
    scene.pipeline = attrs.evolve(scene.pipeline, max_bad_share=0.05, min_bad_records=2)
    scene.produce(range(20))
    with pytest.raises(Refusal, match=r"2 of 20 records do not fit, more than max_bad_share 0\.05"):
        scene.run()
    assert scene.rows() == scene.letters() == []
    scene.pipeline = attrs.evolve(scene.pipeline, max_bad_share=0.1)
    scene.run()
    scene.check_each_once(range(20))


def test_topic_that_is_not_there_is_refused_in_a_sentence(
    spark: SparkSession, broker: Broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    with pytest.raises(Refusal, match="does not exist at"):
        Scene(spark, broker, unique("absent"), tmp_path).run()


def test_pattern_goes_on_without_a_deleted_topic(scene: Scene) -> None:
    """Its rows stay, and a topic of the same name is not taken for it."""
    first = scene.topic
    scene.produce(range(20))
    scene.topic = f"{first}-b"
    scene.create_topic()
    scene.produce(range(20, 40))
    source = attrs.evolve(scene.pipeline.source, topics=(), pattern=f"{first}.*")
    strict = scene.pipeline = attrs.evolve(scene.pipeline, source=source)
    scene.run()
    scene.delete_topic()
    scene.topic = first
    scene.produce(range(40, 60))
    with pytest.raises(Refusal, match="no longer among the pipeline's topics"):
        scene.run()
    lenient = attrs.evolve(source, fail_on_data_loss=False)
    scene.pipeline = attrs.evolve(strict, source=lenient)
    scene.run()
    scene.check_each_once(range(60))
    scene.pipeline = strict
    scene.run()
    assert scene.verify().is_clean
    scene.topic = f"{first}-b"
    scene.create_topic()
    with pytest.raises(Refusal, match=f"topic {first}-b was deleted and recreated"):
        scene.run()


def test_pattern_that_java_does_not_read_is_refused_in_a_sentence(scene: Scene) -> None:
    source = attrs.evolve(scene.pipeline.source, topics=(), pattern="orders[")
    scene.pipeline = attrs.evolve(scene.pipeline, source=source)
    with pytest.raises(Refusal, match=r"source\.pattern: Java does not accept 'orders\['"):
        scene.run()


def test_one_partition_uses_all_cores(scene: Scene) -> None:
    """A batch of one partition is read by as many tasks as its size asks for."""
    scene.produce(range(30), partition=0)
    limits = attrs.evolve(scene.pipeline.limits, max_records_per_partition=10)
    scene.pipeline = attrs.evolve(
        scene.pipeline, limits=limits, transform="compat_tests.pipeline.scene:note_tasks"
    )
    TASKS.clear()
    scene.run()
    scene.check_each_once(range(30))
    assert TASKS[-1] == 3
