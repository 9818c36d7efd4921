"""A table is adopted after its checkpoint was lost: nothing is lost with it, nothing is doubled."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.letter_scene import LetterScene, crash_between_letters
from compat_tests.pipeline.scene import Crash
from kwire_pipeline.config.model import KeyFormat, ValueFormat
from kwire_pipeline.config.values import Column, Format, Mode, Start, TableFormat
from kwire_pipeline.engine.by_key.key_proof import KeyProof
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.errors import Refusal


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> LetterScene:
    chosen = LetterScene(spark, broker, topic, tmp_path)
    chosen.create_topic()
    return chosen


def write_half(scene: LetterScene) -> None:
    """Write a batch, and the rows of another one; then lose the checkpoint."""
    scene.produce(range(20))
    scene.run()
    scene.produce(range(20, 60))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    scene.lose_checkpoint()
    scene.produce(range(60, 70))


def test_adoption_writes_the_letters_that_a_half_written_batch_lacks(scene: LetterScene) -> None:
    write_half(scene)
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(70))
    assert scene.verify().is_clean
    scene.lose_checkpoint()
    assert scene.run(Intent.ADOPT).offsets == 0
    scene.check_each_once(range(70))


def test_adoption_skips_lost_records_only_if_they_are_given_up(scene: LetterScene) -> None:
    scene.produce(range(20))
    scene.run()
    scene.lose_checkpoint()
    scene.produce(range(20, 40))
    scene.delete_records({0: 15})
    scene.produce(range(40, 60))
    with pytest.raises(Refusal, match="no longer have the records") as refusal:
        scene.run(Intent.ADOPT)
    lost = f'{{"{scene.topic}":{{"0":[10,15]}}}}'
    assert f"--give-up '{lost}'" in str(refusal.value)
    assert not (scene.folder / "checkpoint" / "pipeline.json").exists()
    scene.check_each_once(range(20))
    scene.run(Intent.ADOPT, given_up=Ranges.parse(lost))
    scene.check_each_once([n for n in range(60) if n not in range(20, 30, 2)])


def test_new_start_deletes_what_the_topics_lack_only_if_it_is_given_up(scene: LetterScene) -> None:
    scene.produce(range(20))
    scene.run()
    scene.delete_records({1: 4})
    with pytest.raises(Refusal, match="deleted and not written again") as refusal:
        scene.run(Intent.FROM_START)
    lost = f'{{"{scene.topic}":{{"1":[0,4]}}}}'
    assert f"--give-up '{lost}'" in str(refusal.value)
    scene.check_each_once(range(20))
    scene.run()
    scene.run(Intent.FROM_START, given_up=Ranges.parse(lost))
    scene.check_each_once([n for n in range(20) if n % 2 == 0 or n > 8])


def test_run_without_checkpoint_and_table_does_not_write_dead_letters_again(
    scene: LetterScene, spark: SparkSession
) -> None:
    scene.produce(range(20))
    scene.run()
    scene.lose_checkpoint()
    spark.sql(f"DROP TABLE kwire.{scene.pipeline.table.name} PURGE")
    letters = scene.letters()
    with pytest.raises(Refusal, match="are dead letters of pipeline orders, but no checkpoint"):
        scene.run()
    assert scene.letters() == letters
    assert not (scene.folder / "checkpoint").exists()
    scene.run(Intent.FROM_START)
    scene.check_each_once(range(20))
    assert scene.verify().is_clean


@pytest.mark.parametrize("at_end", [pytest.param(False, marks=pytest.mark.long), True])
def test_adoption_begins_a_partition_without_rows_as_chosen(
    scene: LetterScene, at_end: bool
) -> None:
    """The end at which a lost checkpoint began is not known; offsets of the file are."""
    chosen = {scene.topic: {0: 0, 1: 10}}
    start = Start(at_end=True) if at_end else Start(offsets=chosen)
    source = attrs.evolve(scene.pipeline.source, start=Start(offsets=chosen))
    scene.pipeline = attrs.evolve(scene.pipeline, source=source)
    scene.produce(range(20))
    scene.run()
    scene.lose_checkpoint()
    scene.pipeline = attrs.evolve(scene.pipeline, source=attrs.evolve(source, start=start))
    scene.run(Intent.ADOPT)
    ids = sorted(row.id for row in scene.rows())
    assert ids == [n for n in range(20) if n % 10 != 9 and (n % 2 == 0 or at_end)]


@pytest.mark.long
@pytest.mark.parametrize("format", [TableFormat.DELTA, TableFormat.PARQUET])
def test_adoption_of_other_formats_does_so_too(scene: LetterScene, format: TableFormat) -> None:
    table = attrs.evolve(scene.pipeline.table, format=format, warehouse=str(scene.folder / "lake"))
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    write_half(scene)
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(70))


@pytest.mark.long
@pytest.mark.parametrize("format", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_adoption_after_a_new_start_does_not_continue_after_deleted_rows(
    scene: LetterScene, format: TableFormat
) -> None:
    """The new start ends before its first batch; the marks of the deleted rows are there still."""
    table = attrs.evolve(scene.pipeline.table, format=format, warehouse=str(scene.folder / "lake"))
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.produce(range(20))
    scene.run()
    with pytest.raises(Crash):
        scene.run(Intent.FROM_START, crash=Place.BEFORE_TABLE)
    assert scene.rows() == []
    scene.lose_checkpoint()
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(20))
    assert scene.verify().is_clean


@pytest.mark.long
def test_adoption_that_ends_among_letters_of_a_topic_is_continued(
    scene: LetterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs end among the letters of the batch: the first one, and the adoption."""
    scene.create_letter_topic()
    scene.produce(range(20))
    scene.run()
    scene.produce(range(20, 100))
    for intent in (Intent.CONTINUE, Intent.ADOPT):
        crash_between_letters(monkeypatch)
        with pytest.raises(Crash):
            scene.run(intent)
        scene.lose_checkpoint()
    scene.produce(range(100, 110))
    scene.run(Intent.ADOPT)
    scene.check_once_in_topic(range(110))


@pytest.mark.long
def test_adoption_after_a_batch_of_letters_alone(
    scene: LetterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has no mark of the batch; the letters that are there say which it was."""
    scene.create_letter_topic()
    scene.produce(range(20))
    scene.run()
    scene.produce(range(29, 100, 10), partition=1)
    crash_between_letters(monkeypatch)
    with pytest.raises(Crash):
        scene.run()
    scene.lose_checkpoint()
    scene.run(Intent.ADOPT)
    assert scene.verify().is_clean
    offsets = sorted(dict(record.headers)["kwire.offset"] for record in scene.records())
    assert len(offsets) == len(set(offsets)) == 10


@pytest.mark.long
def test_adoption_with_another_file_than_that_of_the_half_written_batch_is_refused(
    scene: LetterScene,
) -> None:
    write_half(scene)
    former = scene.pipeline
    letters = scene.letters()
    scene.pipeline = attrs.evolve(
        former,
        value=ValueFormat(format=Format.RAW),
        table=attrs.evolve(former.table, partition_by=()),
        columns={"id": Column.parse("offset")},
        omit=("value",),
    )
    with pytest.raises(Refusal, match="classifies its records differently than the run"):
        scene.run(Intent.ADOPT)
    assert scene.letters() == letters
    scene.pipeline = former
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(70))


@pytest.mark.long
def test_topic_that_was_made_again_while_the_checkpoint_was_lost_is_not_adopted(
    scene: LetterScene,
) -> None:
    scene.produce(range(20))
    scene.run()
    scene.lose_checkpoint()
    scene.delete_topic()
    scene.create_topic()
    scene.produce(range(20, 60))
    with pytest.raises(Refusal, match="was deleted and recreated since its rows were written to"):
        scene.run(Intent.ADOPT)
    scene.check_each_once(range(20))
    with pytest.raises(Refusal, match="deleted and not written again"):
        scene.run(Intent.FROM_START)
    scene.check_each_once(range(20))
    rows = Ranges.parse(f'{{"{scene.topic}":{{"0":[0,10],"1":[0,10]}}}}')
    scene.run(Intent.FROM_START, given_up=rows)
    scene.check_each_once(range(20, 60))


@pytest.mark.long
def test_adoption_of_a_table_that_is_changed_by_key(scene: LetterScene) -> None:
    """The dead letters are written, and no change is applied a second time."""
    scene.pipeline = attrs.evolve(
        scene.pipeline,
        key=KeyFormat(format=Format.STRING),
        value=ValueFormat(schema="n INT NOT NULL"),
        columns={"id": Column.parse("key")},
        table=attrs.evolve(scene.pipeline.table, partition_by=(), mode=Mode.UPSERT, keys=("id",)),
    )
    producer = KafkaProducer(bootstrap_servers=scene.broker.address)
    for key, value in ((b"a", b'{"n": 1}'), (b"b", b"{"), (b"a", b'{"n": 2}'), (b"c", None)):
        producer.send(scene.topic, value, key=key, partition=0).get(60)
    producer.close()
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    scene.lose_checkpoint()
    scene.run(Intent.ADOPT)
    assert [(row.id, row.n) for row in scene.rows()] == [("a", 2)]
    assert sorted(row.offset for row in scene.letters()) == [1, 3]
    proof = scene.verify()
    assert isinstance(proof, KeyProof)
    assert proof.is_clean, proof.words()
