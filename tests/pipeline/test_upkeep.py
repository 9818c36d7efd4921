"""Tables are maintained between two batches of a run at an interval."""

import datetime
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import attrs
import pytest
from py4j.protocol import Py4JError

from kwire_pipeline.commands import maintain as command
from kwire_pipeline.commands.run import Controls
from kwire_pipeline.config.model import Maintenance, Pipeline
from kwire_pipeline.engine import offline, query, upkeep
from kwire_pipeline.engine.query import Control, Run
from kwire_pipeline.engine.reporting.figures import Batch
from kwire_pipeline.engine.upkeep import FILE, Claims, Turn
from kwire_pipeline.errors import Failure
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Upkeep
from tests.support.pipeline.orders import ORDERS
from tests.support.pipeline.runs import ENDLESS, CheckpointFolder, run_without_spark

START = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
MINUTE = datetime.timedelta(minutes=1)


@attrs.define
class Clock:
    """The time of a run."""

    at: datetime.datetime = START

    def now(self, zone: datetime.tzinfo) -> datetime.datetime:
        return self.at


@attrs.define
class Scene:
    """Runs of one checkpoint, which maintain their tables once an hour."""

    folder: CheckpointFolder = attrs.field(factory=CheckpointFolder)
    clock: Clock = attrs.field(factory=Clock)
    failures: int = 0
    """The number of the next maintenances that fail."""
    error: BaseException = attrs.field(factory=lambda: Failure("the catalog is away"))
    tries: list[datetime.timedelta] = attrs.field(factory=list)
    """The times of maintenances, since the start."""
    warnings: list[str] = attrs.field(factory=list)

    def maintain(self, *_: object) -> list[str]:
        self.tries.append(self.clock.at - START)
        if self.failures:
            self.failures -= 1
            raise self.error
        return []

    def run(self, minutes: int) -> None:
        """Run with a batch each minute, and end without releasing the lease, as when killed."""
        hourly = attrs.evolve(ENDLESS, maintenance=Maintenance(every=HOUR))
        run = run_without_spark(self.folder, Control(warn=self.warnings.append), hourly)
        try:
            for _ in range(minutes):
                run._maintain()
                self.clock.at += MINUTE
        finally:
            self.folder.texts.pop("writer.json")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()

    class Datetime:
        UTC = datetime.UTC
        datetime = scene.clock

    monkeypatch.setattr(query, "datetime", Datetime)
    monkeypatch.setattr(upkeep, "maintain", scene.maintain)
    return scene


def test_tables_are_maintained_every_so_often(scene: Scene) -> None:
    scene.run(minutes=200)
    assert scene.tries == [HOUR, 2 * HOUR, 3 * HOUR]


def test_restarts_do_not_postpone_maintenance(scene: Scene) -> None:
    """A deployment that is restarted more often than the interval still maintains its tables."""
    for _ in range(20):
        scene.run(minutes=10)
    assert scene.tries == [HOUR, 2 * HOUR, 3 * HOUR]


def test_failed_maintenance_is_tried_again_before_the_interval_is_over(scene: Scene) -> None:
    scene.failures = 2
    for _ in range(20):
        scene.run(minutes=7)
    assert scene.tries == [HOUR, HOUR + 6 * MINUTE, HOUR + 12 * MINUTE, 2 * HOUR + 12 * MINUTE]
    assert scene.warnings == ["the tables are not maintained: the catalog is away"] * 2


class Killed(BaseException):
    """Stands for the end of the process, such as one that needs too much memory."""


def test_maintenance_that_ends_the_process_is_not_repeated_at_each_restart(scene: Scene) -> None:
    scene.failures, scene.error = 2, Killed()
    for _ in range(20):
        with suppress(Killed):
            scene.run(minutes=7)
    assert scene.tries == [HOUR, HOUR + 6 * MINUTE, HOUR + 12 * MINUTE, 2 * HOUR + 12 * MINUTE]


class Away(CheckpointFolder):
    """A store that answers nothing about the note, or no longer writes it."""

    def __init__(self, texts: dict[str, str], can_read: bool, writes_left: int) -> None:
        super().__init__()
        self.texts, self.can_read, self.writes_left = texts, can_read, writes_left

    def read(self, name: str) -> str | None:
        if name == FILE and not self.can_read:
            raise Py4JError("the store is away")
        return super().read(name)

    def write(self, name: str, text: str) -> None:
        if name == FILE:
            if not self.writes_left:
                raise Py4JError("the store is away")
            self.writes_left -= 1
        super().write(name, text)


@pytest.mark.parametrize(
    ("can_read", "writes_left", "tries", "problem"),
    [
        (False, 0, 0, "the tables are not maintained"),
        (True, 0, 0, "the tables are not maintained"),
        (True, 1, 1, "upkeep.json is not written"),
    ],
)
def test_store_that_is_away_for_a_moment_does_not_stop_the_run(
    scene: Scene, can_read: bool, writes_left: int, tries: int, problem: str
) -> None:
    Turn(at=START - HOUR).write(scene.folder)
    scene.folder = Away(scene.folder.texts, can_read, writes_left)
    scene.run(minutes=1)
    assert len(scene.tries) == tries
    assert scene.warnings == [f"{problem}: Spark failed: the store is away"]


def test_batch_is_written_and_reported_once_whatever_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark repeats it, because the query has ended with an error."""
    reports: list[Batch] = []
    written: list[int] = []
    result = SimpleNamespace(figures=cast(Any, "figures"), reasons={})

    def write(frame: object, batch_id: int, **_: object) -> object:
        written.append(batch_id)
        return result

    def fail(_: object) -> NoReturn:
        raise TypeError("a defect")

    run = run_without_spark(CheckpointFolder(), Control(report=reports.append))
    run._writer = run._tally = cast(Any, SimpleNamespace(write=write, add=lambda *_: None))
    monkeypatch.setattr(query, "set_parallelism", lambda _: None)
    monkeypatch.setattr(Run, "_check_topics", lambda _: None)
    monkeypatch.setattr(Run, "_note", lambda *_: None)
    monkeypatch.setattr(Run, "_maintain", fail)
    frame = cast(Any, SimpleNamespace(sparkSession=None))
    with pytest.raises(TypeError, match="a defect"):
        run._on_batch(frame, 7)
    run._on_batch(frame, 7)
    assert (written, len(reports)) == ([7], 1)


def test_run_without_an_interval_leaves_no_note(scene: Scene) -> None:
    run_without_spark(scene.folder, Control())._maintain()
    assert FILE not in scene.folder.texts
    assert not scene.tries


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": "yesterday", "is_done": true}'])
def test_damaged_note_counts_as_that_of_a_first_run(text: str) -> None:
    folder = CheckpointFolder()
    folder.texts[FILE] = text
    assert Turn.read(folder, START) == Turn(at=START)
    assert Turn.read(folder, START + HOUR) == Turn(at=START)


def test_time_in_the_future_does_not_delay_maintenance() -> None:
    """The clock of the last run's machine was wrong."""
    assert Turn(at=START + 24 * HOUR).is_over(HOUR, START)
    assert not Turn(at=START).is_over(HOUR, START)


def test_retry_of_a_short_interval_comes_no_later_than_the_interval() -> None:
    failed = Turn(at=START, is_done=False)
    assert failed.is_over(MINUTE / 2, START + MINUTE / 2)
    assert not failed.is_over(5 * MINUTE, START + MINUTE / 2)
    assert failed.is_over(5 * MINUTE, START + MINUTE)


# Tables of several pipelines -----------------------------------------------------------------
@attrs.define
class MaintainedTable:
    """A table that notes who maintains it."""

    name: str
    compactions: int = 0
    fails: bool = False

    def exists(self) -> bool:
        return True

    def protect_marks(self) -> None:
        pass

    def compact(self, _: Upkeep) -> str:
        self.compactions += 1
        if self.fails:
            raise Failure("the catalog is away")
        return "2 files became 1"

    def expire(self, _: Upkeep) -> list[str]:
        return []


def maintain_both(
    claims: Claims, letters: MaintainedTable, every: datetime.timedelta | None, *times: int
) -> list[str]:
    """Maintain two tables with the same dead letters, one after the other, at some minutes."""
    lines = []
    for minute in times:
        limits = upkeep.upkeep_of(Maintenance(every=every), START + minute * MINUTE)
        for name in ("a", "b"):
            own = cast(Any, MaintainedTable(name))
            destinations = Destinations(table=own, dead_letters=cast(Any, letters))
            with suppress(Failure):
                lines += upkeep.maintain(destinations, limits, lambda: None, claims)
    return lines


def test_dead_letters_of_many_tables_are_maintained_once() -> None:
    letters = MaintainedTable("dead")
    lines = maintain_both(Claims(), letters, None, 0)
    assert sorted(line.partition(":")[0] for line in lines) == ["a", "b", "dead"]
    maintain_both(Claims(), letters, HOUR, 0, 30, 60)
    assert letters.compactions == 1 + 2


def test_command_maintains_a_shared_table_once_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters = MaintainedTable("dead")

    def state_of(spark: object, pipeline: Pipeline) -> object:
        own = MaintainedTable(pipeline.table.name)
        destinations = Destinations(table=cast(Any, own), dead_letters=cast(Any, letters))
        at_rest = SimpleNamespace(pending_deletion=())
        return SimpleNamespace(identity=at_rest, is_half_done=False, destinations=destinations)

    monkeypatch.setattr(command, "set_session", lambda _: None)
    monkeypatch.setattr(offline, "state_of", state_of)
    for module in (offline, command):
        monkeypatch.setattr(module, "Folder", lambda *_: CheckpointFolder())
    hourly = attrs.evolve(ORDERS, maintenance=Maintenance(every=HOUR))
    claims = Claims()
    for hours, name in enumerate("abc"):
        pipeline = attrs.evolve(hourly, table=attrs.evolve(hourly.table, name=name))
        lines = command.maintain_tables(
            cast(Any, None), pipeline, START + 2 * hours * HOUR, claims=claims
        )
        assert any(line.startswith(f"{name}: ") for line in lines)
    assert letters.compactions == 1


def test_shared_table_whose_maintenance_failed_has_another_turn() -> None:
    letters, claims = MaintainedTable("dead", fails=True), Claims()
    maintain_both(claims, letters, HOUR, 0)
    assert letters.compactions == 2
    letters.fails = False
    maintain_both(claims, letters, HOUR, 6, 12)
    assert letters.compactions == 3


def test_table_at_which_another_thread_works_is_left_to_it() -> None:
    claims, limits = Claims(), upkeep.upkeep_of(Maintenance(every=HOUR), START)
    with claims.claim("dead", limits) as first, claims.claim("dead", limits) as second:
        assert (first, second) == (True, False)


def test_runs_of_many_tables_share_their_claims() -> None:
    controls = Controls(cast(Any, None), print, lambda: False, None, alert=print, is_many=True)
    assert controls.control_of(ENDLESS).claims is controls.control_of(ORDERS).claims
