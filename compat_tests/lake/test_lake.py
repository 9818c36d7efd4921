"""Each record is once in a table in an object store, whatever ends a run, and whenever."""

from __future__ import annotations

import datetime
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import attrs
import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from compat_tests.lake.scene import LakeScene
from compat_tests.lake.servers import BUCKET, Lake
from compat_tests.pipeline.scene import Crash
from kwire_pipeline.commands.maintain import maintain_tables
from kwire_pipeline.config.values import TableFormat, Trigger
from kwire_pipeline.engine.faults import Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.lease import FILE, Holder, Lease
from kwire_pipeline.engine.proof import Proof
from kwire_pipeline.engine.query import Control, run_pipeline
from kwire_pipeline.engine.shape_and_tables import destinations_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.explain import problem_of
from kwire_pipeline.tables.table import Mark

ICEBERG, DELTA = TableFormat.ICEBERG, TableFormat.DELTA
RECORDS = 2000
AWAY_S = 5
BEATS = 50
RUNS = 8
"""The runs that start at the same time."""


@pytest.mark.parametrize(
    "scene", [ICEBERG, pytest.param(DELTA, marks=pytest.mark.long)], indirect=True
)
def test_each_record_is_once_in_the_table(scene: LakeScene) -> None:
    """The driver ends in a batch, and a paused driver goes on after its successor."""
    scene.produce(range(RECORDS))
    with pytest.raises(Crash):
        scene.run(crash=Place.AFTER_TABLE)
    scene.run()
    scene.produce(range(RECORDS, RECORDS + 20))
    run_twice_at_once(scene)
    scene.check_each_once(range(RECORDS + 20))
    proof = scene.verify()
    assert isinstance(proof, Proof)
    assert (proof.is_clean, proof.records) == (True, RECORDS + 20)
    scene.check_readers()


def run_twice_at_once(scene: LakeScene) -> None:
    """Run, but let another run write the batch after this one has looked at its lease."""
    kind = type(destinations_of(scene.spark, scene.pipeline).table)
    append = kind.append

    def append_after_another(table: object, frame: DataFrame, mark: Mark) -> None:
        patch.undo()
        destinations_of(scene.spark, scene.pipeline).table.append(frame, mark)
        append(table, frame, mark)  # type: ignore[arg-type]

    # Iceberg refuses its commit; Delta leaves out a transaction that it has.
    outcome: AbstractContextManager[object] = nullcontext()
    if scene.pipeline.table.format is TableFormat.ICEBERG:
        outcome = pytest.raises(Failure, match="another run has written batch 1")
    with pytest.MonkeyPatch.context() as patch, outcome:
        patch.setattr(kind, "append", append_after_another)
        scene.run()
    scene.run()


@pytest.mark.long
@pytest.mark.parametrize("scene", [ICEBERG, DELTA], indirect=True)
def test_table_that_was_rolled_back_is_refused_and_adopted(scene: LakeScene) -> None:
    for numbers in (range(20), range(20, 40)):
        scene.produce(numbers)
        scene.run()
    scene.roll_back()
    with pytest.raises(Refusal, match=r"no longer ha(s|ve) batch 1"):
        scene.run()
    scene.run(Intent.ADOPT)
    scene.check_each_once(range(40))
    scene.check_readers()


@pytest.mark.long
@pytest.mark.parametrize("scene", [ICEBERG, DELTA], indirect=True)
def test_records_that_are_lost_before_they_are_read_end_the_run(scene: LakeScene) -> None:
    """The records are gone when a task reads them; a rerun would meet that again."""
    scene.produce(range(20))
    scene.run()
    scene.produce(range(20, 40))
    scene.delete_records({0: 15, 1: 15})
    with pytest.raises((Py4JError, PySparkException)) as raised:
        scene.run()
    problem = problem_of(raised.value)
    assert isinstance(problem, Refusal)
    assert "records were removed from a topic before they were read" in str(problem)
    scene.check_each_once(range(20))


@pytest.mark.parametrize("scene", [ICEBERG], indirect=True)
def test_run_at_an_interval_goes_on_after_an_outage(scene: LakeScene) -> None:
    assert scene.lake is not None
    store = scene.lake.store
    scene.produce(range(20))
    trigger = Trigger(datetime.timedelta(seconds=1))
    scene.pipeline = attrs.evolve(scene.pipeline, trigger=trigger)
    lines: list[str] = []
    restarts: list[float] = []

    class Away:
        """The end of the store, before the first batch is written, for some seconds."""

        def reach(self, place: Place) -> None:
            if place is Place.BEFORE_TABLE and not restarts:
                store.kill()
                threading.Timer(AWAY_S, store.start).start()

    control = Control(
        report=scene.batches.append,
        warn=lines.append,
        on_restart=lambda: restarts.append(time.monotonic()),
        is_stopping=lambda: bool(scene.batches),
        faults=Away(),
    )
    tally = run_pipeline(scene.spark, scene.pipeline, Intent.CONTINUE, control)
    assert tally.is_stopped
    assert restarts
    assert ["will retry" in line for line in lines] == [True, False]
    assert "the run continues after" in lines[1]
    scene.check_each_once(range(20))


@pytest.fixture
def folder(spark: SparkSession, lake: Lake, unique_name: str) -> Folder:
    return Folder(spark, f"s3a://{BUCKET}/{unique_name}/checkpoint")


@pytest.fixture
def unique_name(topic: str) -> str:
    return topic


def test_one_of_the_runs_that_start_at_once_gets_the_lease(folder: Folder) -> None:
    """Also when they find the lease of a run that was killed."""
    dead = attrs.evolve(Holder.this_process(), process_start="1").dump()
    for before in (None, dead):
        if before is not None:
            folder.write(FILE, before)
        with ThreadPoolExecutor(RUNS) as threads:
            answers = list(threads.map(lambda _: take(folder), range(RUNS)))
        (lease,) = [answer for answer in answers if answer is not None]
        lease.check()
        lease.release()
        assert folder.read(FILE) is None


def take(folder: Folder) -> Lease | None:
    try:
        return Lease.take(folder)
    except Refusal:
        return None


def test_run_that_was_paused_does_not_beat_over_the_lease_of_its_successor(folder: Folder) -> None:
    now_s = 0.0
    first = Lease.take(folder, clock=lambda: now_s)
    successor = attrs.evolve(Holder.this_process(), host="elsewhere").dump()
    folder.write(FILE, successor)
    now_s = 60.0
    with pytest.raises(Failure, match="another run has taken over"):
        first.beat()
    assert folder.read(FILE) == successor


def test_write_that_is_repeated_after_a_lost_answer_counts_once(folder: Folder) -> None:
    assert folder.create(FILE, "first")
    assert folder.swap(FILE, "first", "second")
    assert not folder.swap(FILE, "first", "third")
    assert folder.read(FILE) == "second"
    assert not folder.create(FILE, "fourth")


def test_error_of_the_store_is_not_taken_for_a_lost_lease(folder: Folder) -> None:
    elsewhere = Folder(folder.spark, "s3a://no-such-bucket/checkpoint")
    for call in (
        lambda: elsewhere.create(FILE, "text"),
        lambda: elsewhere.read(FILE),
        lambda: elsewhere.swap(FILE, "text", "new"),
    ):
        with pytest.raises(Py4JJavaError, match="bucket"):
            call()


def test_run_reads_its_lease_while_it_beats(folder: Folder) -> None:
    """Hadoop's S3A reads in two requests, and fails if the object changes in between."""
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 60.0
        return now_s

    lease = Lease.take(folder, clock=clock)
    with ThreadPoolExecutor(2) as threads:
        beats = threads.submit(beat_often, lease)
        while not beats.done():
            lease.check()
        beats.result()
    lease.release()


def beat_often(lease: Lease) -> None:
    for _ in range(BEATS):
        lease.beat()


@pytest.mark.long
@pytest.mark.parametrize("scene", [ICEBERG, DELTA], indirect=True)
def test_tables_are_maintained(scene: LakeScene) -> None:
    keeps_young = attrs.evolve(
        scene.pipeline.maintenance, keep_snapshots=1, orphans_after=datetime.timedelta(days=60)
    )
    scene.pipeline = attrs.evolve(scene.pipeline, maintenance=keeps_young)
    for numbers in (range(20), range(20, 40)):
        scene.produce(numbers)
        scene.run()
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    assert maintain_tables(scene.spark, scene.pipeline, later)
    scene.produce(range(40, 60))
    scene.run()
    scene.check_each_once(range(60))
