"""A table that is changed by key has the last change of each key, whatever ends a run."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import CRASHES, Crash, CrashAt, Scene
from kwire_pipeline.commands.backfill import backfill_range
from kwire_pipeline.commands.maintain import maintain_tables
from kwire_pipeline.commands.replay import replay_letters
from kwire_pipeline.commands.status import read_status
from kwire_pipeline.config.model import Expectation, KeyFormat, ValueFormat
from kwire_pipeline.config.values import (
    Column,
    Envelope,
    Format,
    Mode,
    Start,
    TableFormat,
    Tombstones,
)
from kwire_pipeline.day.history import read_day
from kwire_pipeline.engine.by_key.key_proof import KeyProof
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.lease import FILE as LEASE
from kwire_pipeline.engine.lease import Holder
from kwire_pipeline.engine.query import Control, run_pipeline
from kwire_pipeline.engine.shape_and_tables import destinations_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Overtaken, Refusal


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Scene:
    """A pipeline whose records change rows by the record's key; a tombstone deletes."""
    chosen = Scene(spark, broker, topic, tmp_path)
    chosen.create_topic()
    chosen.pipeline = attrs.evolve(
        chosen.pipeline,
        key=KeyFormat(format=Format.STRING),
        value=ValueFormat(schema="n INT NOT NULL"),
        columns={"id": Column.parse("key")},
        table=attrs.evolve(
            chosen.pipeline.table,
            partition_by=(),
            mode=Mode.UPSERT,
            keys=("id",),
            tombstones=Tombstones.DELETE,
        ),
    )
    return chosen


def produce(scene: Scene, records: Sequence[tuple[str, object]]) -> None:
    """Produce records of a key and a value, in order; a key has one partition."""
    producer = KafkaProducer(bootstrap_servers=scene.broker.address, acks="all")
    for key, value in records:
        data = None if value is None else json.dumps(value).encode()
        partition = ord(key[-1]) % 2
        producer.send(scene.topic, data, key=key.encode(), partition=partition).get(60)
    producer.close()


def numbers(scene: Scene) -> dict[str, int]:
    rows = {row.id: row.n for row in scene.rows()}
    assert len(rows) == len(scene.rows())
    return rows


def check(scene: Scene, rows: dict[str, int]) -> KeyProof:
    """Assert that the table has these rows, and that verify finds so too."""
    assert numbers(scene) == rows
    proof = scene.verify()
    assert isinstance(proof, KeyProof)
    assert proof.is_clean, proof.words()
    assert proof.current == len(rows)
    return proof


@pytest.mark.parametrize(
    "format", [pytest.param(TableFormat.ICEBERG, marks=pytest.mark.long), TableFormat.DELTA]
)
def test_value_that_a_change_leaves_out_stays(scene: Scene, format: TableFormat) -> None:
    """Debezium's placeholder for an unchanged large value of Postgres is not the value."""
    left_out = "__debezium_unavailable_value"
    table = attrs.evolve(scene.pipeline.table, format=format, warehouse=str(scene.folder / "lake"))
    schema = ValueFormat(schema="n INT NOT NULL, text STRING")
    scene.pipeline = attrs.evolve(scene.pipeline, table=table, value=schema)
    produce(scene, [("a", {"n": 1, "text": "long"}), ("b", {"n": 2, "text": "old"})])
    scene.run()
    produce(scene, [("a", {"n": 3, "text": left_out}), ("b", {"n": 4, "text": "new"})])
    produce(scene, [("b", {"n": 5, "text": left_out}), ("c", {"n": 6, "text": left_out})])
    scene.run()
    check(scene, {"a": 3, "b": 5, "c": 6})
    assert {row.id: row.text for row in scene.rows()} == {"a": "long", "b": "new", "c": None}


def test_last_change_of_each_key_is_in_the_table(scene: Scene, spark: SparkSession) -> None:
    produce(scene, [("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("c", {"n": 4})])
    produce(scene, [("b", None), ("never", None), ("c", {"n": "four"})])
    tally = scene.run()
    assert (tally.rows, tally.deletions, tally.dead_letters) == (4, 2, 1)
    check(scene, {"a": 3, "c": 4})
    produce(scene, [("a", None), ("b", {"n": 5}), ("c", {"n": 6})])
    scene.run()
    proof = check(scene, {"b": 5, "c": 6})
    assert (proof.records, proof.deleted, proof.letters.once) == (10, 2, 1)
    status = read_status(spark, scene.pipeline)
    assert (status.rows, status.lag, status.dead_letters) == (2, 0, {"n is not int": 1})
    day = read_day(spark, scene.pipeline, datetime.datetime.now(datetime.UTC))
    assert (day.rows, day.letters, day.offsets) == (None, 1, 10)


@pytest.mark.parametrize("place", CRASHES)
def test_batch_that_is_in_the_table_is_not_applied_again(scene: Scene, place: Place) -> None:
    produce(scene, [("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("b", {"n": "x"})])
    with pytest.raises(Crash):
        scene.run(crash=place)
    with pytest.raises(Refusal, match="half done"):
        scene.verify()
    produce(scene, [("b", None)])
    scene.run()
    assert scene.batches[0].is_repeated == (place is not Place.BEFORE_TABLE)
    assert scene.snapshots() == 2
    assert len(scene.letters()) == 1
    check(scene, {"a": 3})


@pytest.mark.long
def test_status_counts_the_rows_that_readers_see(scene: Scene, spark: SparkSession) -> None:
    """With merge-on-read the files keep rows that a change has replaced."""
    properties = {"write.merge.mode": "merge-on-read"}
    table = attrs.evolve(scene.pipeline.table, properties=properties)
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    produce(scene, [("a", {"n": 1}), ("c", {"n": 2})])
    scene.run()
    produce(scene, [("a", {"n": 3})])
    scene.run()
    assert read_status(spark, scene.pipeline).rows == 2
    check(scene, {"a": 3, "c": 2})


@pytest.mark.long
def test_files_of_replaced_rows_are_compacted(scene: Scene, spark: SparkSession) -> None:
    """Each batch of merge-on-read leaves files of deletes, which every reader applies."""
    properties = {"write.merge.mode": "merge-on-read"}
    table = attrs.evolve(scene.pipeline.table, properties=properties)
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    for number in range(4):
        produce(scene, [("a", {"n": number}), ("c", {"n": number})])
        scene.run()
    deletes = spark.table(f"kwire.{scene.pipeline.table.name}.delete_files")
    before = deletes.count()
    assert before >= 3
    lines = maintain_tables(spark, scene.pipeline, datetime.datetime.now(datetime.UTC))
    assert any("delete files became" in line for line in lines)
    deletes = spark.table(f"kwire.{scene.pipeline.table.name}.delete_files")
    assert deletes.count() <= 1
    check(scene, {"a": 3, "c": 3})


def test_verify_finds_what_differs_from_the_last_changes(scene: Scene, spark: SparkSession) -> None:
    produce(scene, [(key, {"n": 1}) for key in "abcdef"])
    produce(scene, [(key, {"n": 2}) for key in "abcd"] + [("f", None)])
    scene.run()
    check(scene, {**dict.fromkeys("abcd", 2), "e": 1})
    table = f"kwire.{scene.pipeline.table.name}"
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 'a'")
    spark.sql(f"DELETE FROM {table} WHERE id = 'b'")
    spark.sql(f"UPDATE {table} SET kafka_offset = kafka_offset - 1 WHERE id = 'c'")
    spark.sql(f"UPDATE {table} SET id = 'g' WHERE id = 'd'")
    proof = scene.verify()
    assert isinstance(proof, KeyProof)
    assert (proof.current, proof.deleted, proof.repeated, proof.missing) == (1, 1, 1, 2)
    assert (proof.stale, proof.unknown) == (1, 1)
    assert not proof.is_clean


def test_changes_of_debezium_are_applied(scene: Scene) -> None:
    scene.pipeline = attrs.evolve(
        scene.pipeline,
        columns={},
        value=ValueFormat(schema="id STRING NOT NULL, n INT NOT NULL"),
        table=attrs.evolve(
            scene.pipeline.table, envelope=Envelope.DEBEZIUM, tombstones=Tombstones.IGNORE
        ),
    )

    def change(op: str, before: object, after: object) -> dict[str, object]:
        return {"before": before, "after": after, "op": op}

    a, b = {"id": "a", "n": 1}, {"id": "b", "n": 2}
    produce(scene, [("a", change("r", None, a)), ("b", change("c", None, b))])
    scene.run()
    produce(scene, [("a", change("u", a, {**a, "n": 5})), ("b", change("d", {"id": "b"}, None))])
    produce(scene, [("b", None), ("a", change("t", None, None))])
    tally = scene.run()
    assert (tally.rows, tally.deletions, tally.ignored, tally.dead_letters) == (1, 1, 1, 1)
    check(scene, {"a": 5})


@pytest.mark.long
def test_lost_checkpoint_of_an_upsert_table_is_adopted(scene: Scene) -> None:
    """A deletion leaves no row, so the marks say where to continue."""
    produce(scene, [("a", {"n": 1}), ("b", {"n": 2}), ("a", None)])
    scene.run()
    scene.lose_checkpoint()
    produce(scene, [("a", {"n": 3}), ("b", None)])
    with pytest.raises(Refusal, match="there is no checkpoint"):
        scene.run()
    assert scene.run(Intent.ADOPT).offsets <= 3
    assert numbers(scene) == {"a": 3}


def test_mode_of_a_table_does_not_change(scene: Scene) -> None:
    produce(scene, [("a", {"n": 1})])
    scene.run()
    upsert = scene.pipeline
    table = attrs.evolve(upsert.table, mode=Mode.APPEND, keys=(), tombstones=Tombstones.DEAD_LETTER)
    scene.pipeline = attrs.evolve(upsert, table=table)
    with pytest.raises(Refusal, match="has changes by the keys id, and this file has appended"):
        scene.run()
    scene.pipeline = attrs.evolve(upsert, table=attrs.evolve(upsert.table, keys=("n", "id")))
    with pytest.raises(Refusal, match="by the keys id, and this file has changes by the keys n, i"):
        scene.run()
    scene.pipeline = upsert
    check(scene, {"a": 1})


def test_ignored_tombstones_of_appended_rows_are_verified(scene: Scene) -> None:
    table = attrs.evolve(
        scene.pipeline.table, mode=Mode.APPEND, keys=(), tombstones=Tombstones.IGNORE
    )
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    produce(scene, [("a", {"n": 1}), ("b", None), ("a", {"n": 2})])
    tally = scene.run()
    assert (tally.rows, tally.ignored, tally.dead_letters) == (2, 1, 0)
    proof = scene.verify()
    assert proof.is_clean
    assert "1 dropped" in proof.words()[0]


@pytest.mark.long
@pytest.mark.parametrize("format", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_older_change_that_arrives_late_neither_overwrites_nor_revives(
    scene: Scene, spark: SparkSession, format: TableFormat
) -> None:
    """Changes are ordered by the database's log, whichever partition they are in."""
    table = attrs.evolve(
        scene.pipeline.table,
        format=format,
        warehouse=str(scene.folder / "lake"),
        envelope=Envelope.DEBEZIUM,
        tombstones=Tombstones.IGNORE,
        sequence_by=("lsn",),
        deletions=f"{scene.pipeline.table.name}_deletions",
    )
    scene.pipeline = attrs.evolve(
        scene.pipeline,
        columns={"lsn": Column.parse("source.lsn")},
        value=ValueFormat(schema="id STRING NOT NULL, n INT NOT NULL"),
        table=table,
    )

    def change(op: str, key: str, n: int, lsn: int, *, partition: int = 0) -> tuple[str, object]:
        row = {"id": key, "n": n}
        images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        return "ba"[partition], {**images, "op": op, "source": {"lsn": lsn}}

    produce(scene, [change("c", "a", 1, 10), change("c", "b", 2, 20), change("c", "c", 3, 30)])
    scene.run()
    with pytest.raises(Refusal, match=r"pipeline orders uses .*_deletions as well"):
        run_pipeline(spark, scene.other_pipeline(), Intent.CONTINUE, Control())
    produce(scene, [change("u", "a", 9, 5, partition=1), change("d", "b", 2, 40)])
    produce(scene, [change("d", "c", 3, 29, partition=1)])
    scene.run()
    check(scene, {"a": 1, "c": 3})
    # Nothing of this batch is newer, and the run that wrote it ends before it is done.
    produce(scene, [change("u", "b", 8, 35, partition=1), change("u", "a", 7, 9)])
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    scene.run()
    check(scene, {"a": 1, "c": 3})
    # The topic no longer has the deletion of b, nor the changes of the rows.
    scene.delete_records({0: 4, 1: 2})
    produce(scene, [change("u", "b", 6, 36, partition=1), change("u", "c", 5, 31, partition=1)])
    scene.run()
    assert numbers(scene) == {"a": 1, "c": 5}
    proof = scene.verify()
    assert isinstance(proof, KeyProof)
    assert (proof.is_clean, proof.current, proof.older) == (True, 1, 1), proof.words()
    produce(scene, [change("c", "b", 4, 50)])
    scene.run()
    assert numbers(scene) == {"a": 1, "b": 4, "c": 5}
    maintenance = attrs.evolve(scene.pipeline.maintenance, forget_deletions_after=timedelta(0))
    scene.pipeline = attrs.evolve(scene.pipeline, maintenance=maintenance)
    deletions = destinations_of(spark, scene.pipeline).deletions
    assert deletions is not None
    assert sorted(row.id for row in deletions.read().collect()) == ["b", "c"]
    bounds = Start(offsets={scene.topic: {1: 2}}), Start(at_end=True)
    backfill_range(spark, scene.pipeline, bounds)
    assert numbers(scene) == {"a": 1, "b": 4, "c": 5}
    later = datetime.datetime.now(datetime.UTC) + timedelta(seconds=2)
    maintain_tables(spark, scene.pipeline, later)
    assert deletions.read().count() == 0
    with pytest.raises(Refusal, match="changes at offsets 3 to 3 of partition 1 of"):
        backfill_range(spark, scene.pipeline, bounds)
    if format is TableFormat.ICEBERG:
        spark.sql(f"DROP TABLE {deletions.name}")
    else:
        shutil.rmtree(scene.folder / "lake" / str(table.deletions).replace(".", "/"))
    no_longer = "_deletions no longer exists"
    with pytest.raises(Refusal, match=no_longer):
        scene.run()
    with pytest.raises(Refusal, match=no_longer):
        replay_letters(spark, scene.pipeline)
    with pytest.raises(Refusal, match=no_longer):
        backfill_range(spark, scene.pipeline, bounds)


@attrs.frozen
class TakeOver:
    """Another run, which has ended since, takes the lease over in the middle of a command."""

    folder: Folder

    def reach(self, place: Place) -> None:
        other = attrs.evolve(Holder.this_process(), lease_id="other", process_start="ended")
        self.folder.write(LEASE, other.dump())


@pytest.mark.long
@pytest.mark.parametrize("format", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_letter_is_applied_unless_its_key_has_changed_since(
    scene: Scene, spark: SparkSession, format: TableFormat
) -> None:
    table = attrs.evolve(scene.pipeline.table, format=format, warehouse=str(scene.folder / "lake"))
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    lenient = scene.pipeline
    scene.pipeline = attrs.evolve(lenient, expectations={"small": Expectation(check="n < 100")})
    produce(scene, [(key, {"n": number}) for number, key in enumerate("abc")])
    produce(scene, [(key, {"n": 100 + number}) for number, key in enumerate("abcd")])
    produce(scene, [("b", {"n": 5}), ("c", None), ("e", {"n": 200})])
    scene.run()
    check(scene, {"a": 0, "b": 5})
    stricter = {"small": Expectation(check="n < 200")}
    scene.pipeline = attrs.evolve(lenient, expectations=stricter)
    letters = scene.letters()
    with pytest.raises(Overtaken):
        replay_letters(spark, scene.pipeline, TakeOver(Folder(spark, scene.pipeline.checkpoint)))
    assert scene.letters() == letters
    with pytest.raises(Crash):
        replay_letters(spark, scene.pipeline, CrashAt(Place.AFTER_TABLE))
    assert replay_letters(spark, scene.pipeline) == (4, 1)
    check(scene, {"a": 100, "b": 5, "d": 103})
    scene.run()
    scene.delete_records({0: 4, 1: 6})
    scene.pipeline = lenient
    with pytest.raises(Refusal, match="may no longer have a deletion that came after"):
        replay_letters(spark, scene.pipeline)
    assert len(scene.letters()) == 1
