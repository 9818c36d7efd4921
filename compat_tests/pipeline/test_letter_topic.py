"""Dead letters in a topic: each record that does not fit is there once, with the reason."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path

import attrs
import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.letter_scene import LetterScene, crash_between_letters, lose_a_letter
from compat_tests.pipeline.scene import Crash
from kwire_pipeline.commands.maintain import maintain_tables
from kwire_pipeline.commands.replay import replay_letters
from kwire_pipeline.commands.status import read_status
from kwire_pipeline.config.model import DeadLetters, Expectation, Source
from kwire_pipeline.day.history import read_day
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.planning import plan_run
from kwire_pipeline.engine.proof import Proof
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.letter_records import HEADERS


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> LetterScene:
    chosen = LetterScene(spark, broker, topic, tmp_path)
    chosen.create_topic()
    chosen.create_letter_topic()
    return chosen


def test_run_that_ends_among_its_letters_is_continued_without_loss_or_repetition(
    scene: LetterScene, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.produce(range(60))
    crash_between_letters(monkeypatch)
    with pytest.raises(Crash):
        scene.run()
    assert 0 < len(scene.records()) < 6
    scene.produce(range(60, 80))
    tally = scene.run()
    assert scene.batches[0].is_repeated
    assert (tally.rows, tally.dead_letters, tally.reasons) == (72, 8, {"not JSON": 8})
    scene.check_once_in_topic(range(80))
    assert scene.verify().is_clean
    status = read_status(spark, scene.pipeline)
    assert (status.rows, status.dead_letters) == (72, {"not JSON": 8})
    day = read_day(spark, scene.pipeline, datetime.datetime.now(datetime.UTC))
    assert (day.rows, day.letters, day.reasons) == (72, 8, {"not JSON": 8})
    assert scene.run().batches == 0


def test_letter_keeps_its_record_and_names_place_reason_and_batch(scene: LetterScene) -> None:
    """A tombstone, a record with headers of its own, and one without a key."""
    producer = KafkaProducer(bootstrap_servers=scene.broker.address)
    own = [("trace", b"\xff\x00"), ("trace", b""), ("kwire.reason", b"none")]
    sent = [(b"\xffkey", b"{", own), (b"k", None, []), (None, b"x", [])]
    sent_ms = int(time.time()) * 1000 + 123
    for offset, (key, value, headers) in enumerate(sent):
        producer.send(
            scene.topic, value, key, headers, partition=1, timestamp_ms=sent_ms + offset
        ).get(60)
    producer.close()
    assert scene.run().dead_letters == 3
    records = sorted(scene.records(), key=lambda record: int(dict(record.headers)["kwire.offset"]))
    reasons = ["not JSON", "the value is null", "not JSON"]
    for offset, (record, (key, value, headers)) in enumerate(zip(records, sent, strict=True)):
        assert (record.key, record.value) == (key, value)
        assert record.headers[: len(headers)] == headers
        added = record.headers[len(headers) :]
        assert [name for name, _ in added] == list(HEADERS)
        texts = {name: text.decode() for name, text in added}
        assert texts.pop("kwire.pipeline-id")
        assert texts == {
            "kwire.topic": scene.topic,
            "kwire.partition": "1",
            "kwire.offset": str(offset),
            "kwire.timestamp": str(sent_ms + offset),
            "kwire.timestamp-type": "0",
            "kwire.reason": reasons[offset],
            "kwire.pipeline": "orders",
            "kwire.table": scene.pipeline.table.name,
            "kwire.batch-id": "0",
            "kwire.dead-letters": "3",
            "kwire.offsets": json.dumps({scene.topic: {"1": [0, 3]}}, separators=(",", ":")),
        }
    letters = sorted(scene.letters(), key=lambda row: row.offset)
    assert [(row.key, row.value, row.reason) for row in letters] == [
        (key, value, reason) for (key, value, _), reason in zip(sent, reasons, strict=True)
    ]
    assert [(each.key, each.value) for each in letters[0].headers] == own
    assert letters[1].headers is None


@pytest.mark.long
@pytest.mark.parametrize("place", [Place.BEFORE_TABLE, Place.AFTER_TABLE, Place.AFTER_DEAD_LETTERS])
def test_run_that_ends_in_a_batch_writes_each_letter_once(scene: LetterScene, place: Place) -> None:
    scene.with_limit(20)
    scene.produce(range(20))
    scene.run()
    scene.produce(range(20, 60))
    for _ in range(2):
        with pytest.raises(Crash):
            scene.run(crash=place)
    scene.run()
    scene.check_once_in_topic(range(60))
    assert scene.verify().is_clean


@pytest.mark.long
def test_pipelines_share_a_topic_of_letters(scene: LetterScene) -> None:
    """Each counts its own letters, though both read the same records."""
    scene.produce(range(20))
    scene.run()
    first = scene.pipeline
    scene.pipeline = scene.other_pipeline()
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    scene.run()
    assert len(scene.records()) == 4
    for pipeline in (first, scene.pipeline):
        scene.pipeline = pipeline
        scene.check_each_once(range(20))
        assert scene.verify().is_clean


@pytest.mark.long
def test_verify_counts_repeated_and_expired_letters(scene: LetterScene) -> None:
    """A task of Spark that was repeated is no failure, nor is the topic's retention."""
    scene.produce(range(40))
    scene.run()
    record = scene.records()[0]
    producer = KafkaProducer(bootstrap_servers=scene.broker.address)
    producer.send(scene.letter_topic, record.value, record.key, record.headers).get(60)
    producer.send(scene.letter_topic, b"of another writer", b"k", [("a", b"b")]).get(60)
    producer.close()
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert (proof.is_clean, proof.once, proof.letter_copies) == (True, 40, 1)
    assert "1 dead letters are in their topic once more" in proof.words()[1]
    scene.delete_letters()
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert (proof.is_clean, proof.once, proof.expired, proof.missing) == (True, 36, 4, 0)
    scene.produce(range(40, 50))
    scene.run()
    assert scene.verify().is_clean
    assert len(scene.records()) == 1


@pytest.mark.long
def test_verify_misses_a_letter_that_retention_cannot_have_removed(
    scene: LetterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch was written after all letters that are gone."""
    scene.produce(range(40))
    scene.run()
    producer = KafkaProducer(bootstrap_servers=scene.broker.address)
    producer.send(scene.letter_topic, b"of another writer", b"k", [("a", b"b")]).get(60)
    producer.close()
    scene.delete_letters()
    scene.produce(range(40, 50))
    scene.run()
    lose_a_letter(monkeypatch)
    scene.produce(range(50, 70))
    scene.run()
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert (proof.once, proof.expired, proof.missing) == (65, 4, 1)
    assert proof.problem.startswith("missing, for example: partition 1 of ")


@pytest.mark.long
def test_what_a_topic_cannot_do_is_refused_in_a_sentence(
    scene: LetterScene, spark: SparkSession
) -> None:
    scene.produce(range(20))
    scene.run()
    with pytest.raises(Refusal, match=r"run a second pipeline with source\.topics"):
        replay_letters(spark, scene.pipeline)
    with pytest.raises(Refusal, match=r"cannot be deleted one by one: choose another topic"):
        scene.run(Intent.FROM_START)
    now = datetime.datetime.now(datetime.UTC)
    assert "topic's retention" not in maintain_tables(spark, scene.pipeline, now)[-1]
    assert maintain_tables(spark, scene.pipeline, now)[-1].startswith(f"topic {scene.letter_topic}")
    scene.set_topic(**{"cleanup.policy": "compact"})
    for command in (scene.run, lambda: plan_run(spark, scene.pipeline)):
        with pytest.raises(Refusal, match="is compacted, so letters with the same key would be"):
            command()
    absent = DeadLetters(topic=f"{scene.letter_topic}-absent")
    scene.pipeline = attrs.evolve(scene.pipeline, dead_letters=absent)
    with pytest.raises(Refusal, match=r"dead_letters\.topic: .* does not exist at"):
        scene.run()
    pattern = Source(bootstrap=scene.broker.address, pattern=f"{scene.topic}.*")
    letters = DeadLetters(topic=scene.letter_topic)
    scene.pipeline = attrs.evolve(scene.pipeline, source=pattern, dead_letters=letters)
    with pytest.raises(Refusal, match=r"matches source\.pattern"):
        scene.run()
    scene.check_once_in_topic(range(20))


@pytest.mark.long
def test_run_without_checkpoint_and_table_does_not_write_letters_again(
    scene: LetterScene, spark: SparkSession
) -> None:
    scene.produce(range(20))
    scene.run()
    scene.lose_checkpoint()
    spark.sql(f"DROP TABLE kwire.{scene.pipeline.table.name} PURGE")
    with pytest.raises(Refusal, match="are dead letters of pipeline orders, but no checkpoint"):
        scene.run()
    with pytest.raises(Refusal, match="cannot be deleted one by one: choose another topic"):
        scene.run(Intent.FROM_START)
    assert not spark.catalog.tableExists(f"kwire.{scene.pipeline.table.name}")
    assert len(scene.records()) == 2
    table = scene.pipeline.table.name
    scene.pipeline = attrs.evolve(scene.pipeline, dead_letters=DeadLetters(table=f"{table}_dead"))
    scene.run()
    scene.check_each_once(range(20))


@pytest.mark.long
def test_second_pipeline_over_the_letters_makes_rows_of_those_that_fit(scene: LetterScene) -> None:
    """The way that the refusal of replay names."""
    first = scene.pipeline
    late = attrs.evolve(first, expectations={"late": Expectation(check="id >= 10")})
    scene.pipeline = late
    scene.produce(range(20))
    assert scene.run().dead_letters == 11
    scene.pipeline = attrs.evolve(
        first,
        name="again",
        source=attrs.evolve(first.source, topics=(scene.letter_topic,)),
        dead_letters=DeadLetters(table=f"{first.table.name}_again"),
        checkpoint=str(scene.folder / "again"),
    )
    tally = scene.run()
    assert (tally.rows, tally.dead_letters) == (9, 2)
    assert sorted(row.id for row in scene.rows()) == [n for n in range(20) if n % 10 != 9]
    for pipeline in (scene.pipeline, late):
        scene.pipeline = pipeline
        assert scene.verify().is_clean


@pytest.mark.long
def test_letter_that_is_too_large_is_refused_before_its_batch_is_written(
    scene: LetterScene,
) -> None:
    scene.set_topic(**{"max.message.bytes": "4000000"})
    producer = KafkaProducer(bootstrap_servers=scene.broker.address)
    producer.send(scene.topic, b"x" * 1_000_000, b"k", partition=0).get(60)
    producer.close()
    scene.produce(range(10))
    # 1 MB, 300 bytes of headers, and some more for the record itself.
    scene.set_topic(**{"max.message.bytes": "1000200"})
    with pytest.raises(Refusal, match=r"partition 0 of .*, offset 0 has 1,000,\d+ bytes with its"):
        scene.run()
    assert scene.rows() == []
    scene.set_topic(**{"max.message.bytes": "1001000"})
    assert scene.run().dead_letters == 2
    assert max(len(record.value) for record in scene.records()) == 1_000_000
