"""The commands beside `run`: verify, status and maintain, and tables of Parquet."""

from __future__ import annotations

import datetime
from pathlib import Path

import attrs
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from compat_tests.confluent_kafka.clients import consumer
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from compat_tests.pipeline.scene import Crash, CrashAt, Scene
from kwire_pipeline.commands.backfill import backfill_range
from kwire_pipeline.commands.maintain import maintain_tables
from kwire_pipeline.commands.replay import replay_letters
from kwire_pipeline.commands.status import read_status
from kwire_pipeline.config.model import Expectation
from kwire_pipeline.config.values import Action, Evolution, Format, Partition, Start, TableFormat
from kwire_pipeline.engine.cluster import Cluster
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.planning import plan_run
from kwire_pipeline.engine.proof import Proof
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal


@pytest.fixture
def scene(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Scene:
    chosen = Scene(spark, broker, topic, tmp_path)
    chosen.create_topic()
    return chosen


@pytest.mark.long
def test_verify_counts_missing_and_repeated_offsets(scene: Scene, spark: SparkSession) -> None:
    scene.produce(range(40))
    scene.run()
    scene.produce(range(40, 50))  # beyond the position: not yet committed
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert proof.is_clean
    assert (proof.records, proof.once) == (40, 40)
    table = f"kwire.{scene.pipeline.table.name}"
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id IN (4, 5, 6)")
    spark.sql(f"DELETE FROM {table} WHERE id IN (7, 8)")
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert not proof.is_clean
    assert (proof.records, proof.once, proof.missing, proof.repeated) == (40, 35, 2, 3)
    assert any("missing, for example: partition 0 of" in line for line in proof.words())


@pytest.mark.long
def test_verify_knows_how_many_rows_a_transform_makes(scene: Scene, spark: SparkSession) -> None:
    """Two of 20 records are dead letters, 8 become no row, and 10 become two rows each."""
    scene.pipeline = attrs.evolve(
        scene.pipeline, transform="compat_tests.pipeline.scene:halve_and_double"
    )
    scene.produce(range(20))
    tally = scene.run()
    assert (tally.rows, tally.omitted, tally.dead_letters) == (20, 8, 2)
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert proof.is_clean, proof.words()
    assert (proof.records, proof.once, proof.dropped) == (20, 12, 8)
    table = f"kwire.{scene.pipeline.table.name}"
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 4 LIMIT 1")
    spark.sql(f"DELETE FROM {table} WHERE id = 6")
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert (proof.repeated, proof.missing) == (1, 1)


def test_verify_knows_compacted_topics(scene: Scene, spark: SparkSession) -> None:
    """A record that the table has is gone from the topic: no failure if the topic is compacted."""
    cluster = Cluster(spark, {"bootstrap.servers": scene.broker.address})
    try:
        assert cluster.topics_with_compaction([scene.topic]) == []
        admin = KafkaAdminClient(bootstrap_servers=scene.broker.address)
        config = {"cleanup.policy": "compact,delete"}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, scene.topic, configs=config)])
        admin.close()
        assert cluster.topics_with_compaction([scene.topic]) == [scene.topic]
    finally:
        cluster.close()


def test_run_maintains_its_tables_between_batches(scene: Scene, spark: SparkSession) -> None:
    """A run that ends during it has written its batch, which the next run does not repeat."""
    scene.with_limit(20)
    often = attrs.evolve(scene.pipeline.maintenance, every=datetime.timedelta(0))
    scene.pipeline = attrs.evolve(scene.pipeline, maintenance=often)
    scene.produce(range(40))
    with pytest.raises(Crash):
        scene.run(crash=Place.DURING_MAINTAIN)
    scene.run()
    assert [batch.is_repeated for batch in scene.batches] == [False, True, False]
    for table in (scene.pipeline.table.name, scene.pipeline.dead_letters.table):
        assert spark.table(f"kwire.{table}.refs").where("type = 'TAG'").count() == 1
    scene.check_each_once(range(40))
    assert scene.verify().is_clean


@pytest.mark.long
def test_maintenance_keeps_marks_and_is_refused_beside_a_run(
    scene: Scene, spark: SparkSession
) -> None:
    scene.with_limit(20)
    scene.produce(range(60))
    scene.run()
    status = read_status(spark, scene.pipeline)
    assert (status.lag, status.batch_id, status.is_half_done) == (0, 2, False)
    assert (status.rows, status.dead_letters) == (54, {"not JSON": 6})
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    keep_few = attrs.evolve(
        scene.pipeline.maintenance, keep_snapshots=1, orphans_after=datetime.timedelta(days=60)
    )
    scene.pipeline = attrs.evolve(scene.pipeline, maintenance=keep_few)
    scene.produce(range(60, 80))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    assert read_status(spark, scene.pipeline).is_half_done
    with pytest.raises(Refusal, match="half done"):
        maintain_tables(spark, scene.pipeline, later)

    class MaintainHere:
        def reach(self, place: Place) -> None:
            with pytest.raises(Refusal, match="is using the checkpoint"):
                maintain_tables(spark, scene.pipeline, later)

    scene.run(faults=MaintainHere())

    class CrashHere:
        def reach(self, place: Place) -> None:
            with pytest.raises(Refusal, match="is using the checkpoint"):
                scene.run()
            raise Crash(place.value)

    with pytest.raises(Crash):
        maintain_tables(spark, scene.pipeline, later, CrashHere())
    maintain_tables(spark, scene.pipeline, later)
    marks = spark.table(f"kwire.{scene.pipeline.table.name}.snapshots").select(
        F.col("summary")["kwire.batch-id"]
    )
    assert [row[0] for row in marks.collect() if row[0] is not None] == ["3"]
    scene.check_each_once(range(80))
    assert scene.verify().is_clean


@pytest.mark.long
def test_parquet_files_are_exact_for_readers_that_know_nothing_of_spark(
    scene: Scene, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends between the commit and the moves: no row is there twice, then none is missing."""
    table = attrs.evolve(
        scene.pipeline.table,
        format=TableFormat.PARQUET,
        warehouse=str(scene.folder / "lake"),
        partition_by=(Partition.parse("days(at)"),),
    )
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.produce(range(40))
    moves = 0

    def move_to(folder: Folder, target: Folder) -> None:
        nonlocal moves
        moves += 1
        if moves == 2:
            raise Crash("second move")
        move_file(folder, target)

    move_file = Folder.move_to
    monkeypatch.setattr(Folder, "move_to", move_to)
    with pytest.raises(Crash):
        scene.run()
    scene.produce(range(40, 50))
    scene.run()
    scene.check_each_once(range(50))
    assert scene.verify().is_clean
    place = scene.folder / "lake" / table.name.replace(".", "/")
    files = [str(path) for path in place.glob("*/*.parquet")]
    ids = sorted(row.id for row in spark.read.parquet(*files).select("id").collect())
    assert ids == [number for number in range(50) if number % 10 != 9]
    scene.lose_checkpoint()
    with pytest.raises(Refusal, match="there is no checkpoint"):
        scene.run()


def test_adoption_of_a_parquet_table_moves_committed_files_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is lost after a run that ended between its commit and the moves."""
    table = attrs.evolve(
        scene.pipeline.table, format=TableFormat.PARQUET, warehouse=str(scene.folder / "lake")
    )
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    scene.produce(range(9))

    def move_to(folder: Folder, target: Folder) -> None:
        raise Crash("move")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "move_to", move_to)
        with pytest.raises(Crash):
            scene.run()
    scene.lose_checkpoint()
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(9))


@pytest.mark.long
def test_replay_moves_letters_that_fit_today(scene: Scene, spark: SparkSession) -> None:
    """A replay that ends between its two steps is finished by the next one."""
    scene.produce(range(20))
    narrow = attrs.evolve(scene.pipeline.value, schema="id BIGINT NOT NULL, name INT, at TIMESTAMP")
    table = attrs.evolve(scene.pipeline.table, evolution=Evolution.WIDEN)
    wide = scene.pipeline
    scene.pipeline = attrs.evolve(
        scene.pipeline, value=narrow, table=table, omit=("name",), columns={}
    )
    assert scene.run().dead_letters == 20
    scene.pipeline = attrs.evolve(wide, table=table)
    scene.produce(range(20, 30))
    scene.run()

    class CrashHere:
        def reach(self, place: Place) -> None:
            with pytest.raises(Refusal, match="is using the checkpoint"):
                scene.run()
            raise Crash(place.value)

    strict = {"low": Expectation(check="id < 5", action=Action.FAIL)}
    with pytest.raises(Refusal, match="13 rows do not meet the expectation low"):
        replay_letters(spark, attrs.evolve(scene.pipeline, expectations=strict))
    assert len(scene.letters()) == 21
    with pytest.raises(Crash):
        replay_letters(spark, scene.pipeline, CrashHere())
    assert replay_letters(spark, scene.pipeline) == (18, 3)
    scene.check_each_once(range(30))
    assert scene.verify().is_clean
    assert replay_letters(spark, scene.pipeline) == (0, 3)


@pytest.mark.long
def test_replay_leaves_the_letters_of_other_pipelines_alone(
    scene: Scene, spark: SparkSession
) -> None:
    """Two pipelines over two topics share the table of dead letters."""
    scene.produce(range(20))
    scene.run()
    first, topic = scene.pipeline, scene.topic
    scene.topic = f"{topic}-b"
    scene.create_topic()
    scene.produce(range(20, 40))
    source = attrs.evolve(first.source, topics=(scene.topic,))
    strict = {"none": Expectation(check="id < 0")}
    second = attrs.evolve(scene.other_pipeline(), source=source, expectations=strict)
    scene.pipeline = second
    scene.run()
    assert replay_letters(spark, first) == (0, 2)
    scene.pipeline = first
    assert len(scene.rows()) == 18
    assert len(scene.letters()) == 2 + 20
    assert read_status(spark, first).dead_letters == {"not JSON": 2}
    assert replay_letters(spark, attrs.evolve(second, expectations={})) == (18, 2)
    for pipeline in (first, second):
        scene.pipeline = pipeline
        assert scene.verify().is_clean


def test_plan_shows_the_changes_and_writes_nothing(scene: Scene, spark: SparkSession) -> None:
    name = scene.pipeline.table.name
    (begin, change) = plan_run(spark, scene.pipeline)
    assert begin == "a run begins at source.start"
    assert change.startswith(f"a run creates {name} (id bigint, name string, at timestamp, kafka_")
    assert not (scene.folder / "checkpoint").exists()
    scene.run()
    assert plan_run(spark, scene.pipeline)[1:] == [f"{name} has all columns"]
    value = attrs.evolve(scene.pipeline.value, schema="id BIGINT NOT NULL, city STRING")
    scene.pipeline = attrs.evolve(scene.pipeline, value=value)
    with pytest.raises(Refusal, match=r"lacks new columns of the schema \(city\)"):
        plan_run(spark, scene.pipeline)
    table = attrs.evolve(scene.pipeline.table, evolution=Evolution.ADDITIVE)
    scene.pipeline = attrs.evolve(scene.pipeline, table=table)
    assert plan_run(spark, scene.pipeline)[1:] == [f"{name}: add city string"]
    scene.run()
    assert plan_run(spark, scene.pipeline)[1:] == [f"{name} has all columns"]


@pytest.mark.parametrize(
    "format", [TableFormat.ICEBERG, pytest.param(TableFormat.DELTA, marks=pytest.mark.long)]
)
def test_names_and_properties_may_have_quotes(scene: Scene, format: TableFormat) -> None:
    properties = {"lake.note": "the lake's orders", "lake.place": "C:\\orders"}
    table = attrs.evolve(
        scene.pipeline.table,
        format=format,
        warehouse=str(scene.folder / "lake"),
        properties=properties,
    )
    scene.pipeline = attrs.evolve(scene.pipeline, name="lake's orders", table=table)
    scene.produce(range(10))
    scene.run()
    scene.check_each_once(range(10))
    scene.lose_checkpoint()
    with pytest.raises(Refusal, match="has rows of pipeline lake's orders"):
        scene.run()
    name = scene.pipeline.table.name
    source = f"delta.`{table.warehouse}/{name.replace('.', '/')}`"
    source = f"kwire.{name}" if format is TableFormat.ICEBERG else source
    rows = scene.spark.sql(f"SHOW TBLPROPERTIES {source}").collect()
    written = {row["key"]: row["value"] for row in rows}
    assert {key: written[key] for key in properties} == properties


def test_bytes_are_kept_as_they_are(scene: Scene) -> None:
    value = attrs.evolve(scene.pipeline.value, format=Format.RAW, schema=None)
    table = attrs.evolve(scene.pipeline.table, partition_by=())
    scene.pipeline = attrs.evolve(scene.pipeline, value=value, table=table)
    scene.produce(range(10))
    assert scene.run().dead_letters == 0
    assert len(scene.rows()) == 10
    assert scene.verify().is_clean


def test_offsets_after_each_batch_are_committed_to_a_group(
    scene: Scene, spark: SparkSession
) -> None:
    """Tools that show lag see the position, and a group with members is refused."""
    group = f"lake-{scene.topic}"
    scene.pipeline = attrs.evolve(scene.pipeline, commit_group=group)
    admin = KafkaAdminClient(bootstrap_servers=scene.broker.address)

    def positions() -> dict[int, int]:
        offsets = admin.list_group_offsets({group: None})[group]
        return {place.partition: offset.offset for place, offset in offsets.items()}

    try:
        scene.run()
        assert positions() == {0: 0, 1: 0}
        scene.with_limit(20)
        scene.produce(range(50))
        scene.run()
        assert positions() == {0: 25, 1: 25}
        with consumer(scene.broker.address, group) as member:
            member.subscribe([scene.topic])
            eventually(lambda: [member.poll(0.1)] and member.assignment(), "assignment")
            with pytest.raises(Refusal, match=f"commit_group: the group {group} has members"):
                scene.run()
    finally:
        admin.close()
    scene.check_each_once(range(50))


def test_topic_that_grows_before_the_first_batch_is_read_whole(scene: Scene) -> None:
    """The first run notes the offsets at which it begins, and ends before Spark's query begins."""
    group = f"lake-{scene.topic}"
    scene.pipeline = attrs.evolve(scene.pipeline, commit_group=group)
    scene.produce(range(10))
    with consumer(scene.broker.address, group) as member:
        member.subscribe([scene.topic])
        eventually(lambda: [member.poll(0.1)] and member.assignment(), "assignment")
        with pytest.raises(Refusal, match="has members"):
            scene.run()
    admin = KafkaAdminClient(bootstrap_servers=scene.broker.address)
    admin.create_partitions({scene.topic: 3})
    admin.close()
    scene.produce(range(10, 20), partition=2)
    scene.run()
    scene.check_each_once(range(20))
    assert scene.verify().is_clean


def test_backfill_writes_each_record_of_a_range_once(scene: Scene, spark: SparkSession) -> None:
    """A range overlaps what is there, and the backfill that writes it ends in between."""
    scene.produce(range(60))
    start = Start(offsets={scene.topic: {0: 15, 1: 20}})
    scene.pipeline = attrs.evolve(
        scene.pipeline, source=attrs.evolve(scene.pipeline.source, start=start)
    )
    scene.run()
    assert len(scene.rows()) + len(scene.letters()) == 25
    scene.produce(range(60, 70))
    bounds = Start(offsets={scene.topic: {0: 0, 1: 0}}), Start(at_end=True)
    scene.with_limit(12)
    with pytest.raises(Crash):
        backfill_range(spark, scene.pipeline, bounds, CrashAt(Place.AFTER_TABLE))
    assert len(scene.rows()) > 25 - len(scene.letters())
    records, rows, letters = backfill_range(spark, scene.pipeline, bounds)
    assert records == 60
    assert rows + letters < 35
    scene.check_each_once(range(60))
    assert backfill_range(spark, scene.pipeline, bounds) == (60, 0, 0)
    scene.run()
    scene.check_each_once(range(70))
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert (proof.is_clean, proof.records) == (True, 70), proof.words()
