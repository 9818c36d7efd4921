"""The run of many tables: which tables run, and that one that fails stops only itself."""

from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Any

import attrs
import pytest
from py4j.protocol import Py4JNetworkError

from kwire_pipeline.config.document import read_document
from kwire_pipeline.config.load import Flag
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Template
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.query import Control
from kwire_pipeline.engine.reporting.figures import Batch, Tally
from kwire_pipeline.errors import (
    EXIT_FAILURE,
    EXIT_REFUSAL,
    Failure,
    Held,
    Overtaken,
    Permanent,
    Refusal,
)
from kwire_pipeline.many.runs import Finished, Order, Outcome, Outside, TableRuns
from kwire_pipeline.many.state import Look, Problem
from tests.support.pipeline.many import MANY, FakeEngine, Inline, place, template

BATCH = Batch(
    batch_id=0, rows=1, dead_letters=0, dropped=0, unmet={}, bytes=1, offsets=1, lag=0,
    elapsed_s=0.1,
)  # fmt: skip
EVERY = (Flag("trigger", "10 seconds"),)


@attrs.define
class Scene:
    """A run with a clock of its own; events happen at their seconds."""

    engine: FakeEngine
    many: Template = attrs.field(factory=template)
    events: dict[int, Callable[[], object]] = attrs.field(factory=dict)
    warnings: list[str] = attrs.field(factory=list)
    alerts: list[str] = attrs.field(factory=list)
    now_s: int = 0
    end_s: int = 1_000_000
    restarts: list[str] = attrs.field(factory=list)

    def pause(self, running: Collection[Future[Finished]]) -> None:
        self.now_s += 1
        self.events.pop(self.now_s, lambda: None)()

    def control_of(self, pipeline: Pipeline) -> Control:
        return Control(on_restart=lambda: self.restarts.append(pipeline.name))

    def run(self, order: Order | None = None, executor: Executor | None = None) -> Outcome:
        return TableRuns(
            template=self.many,
            engine=self.engine,
            outside=Outside(
                control_of=self.control_of,
                warn=self.warnings.append,
                alert=self.alerts.append,
                is_stopping=lambda: self.now_s >= self.end_s,
            ),
            executor=executor or Inline(),
            order=order or Order(),
            clock=lambda: self.now_s,
            pause=self.pause,
        ).run()

    def topics_run(self) -> list[str]:
        return [topic for topic, _ in self.engine.runs]


def test_all_topics_are_written_after_one_look() -> None:
    engine = FakeEngine(ends={f"t{n}": 10 for n in range(200)})
    outcome = Scene(engine).run()
    assert outcome.tally.rows == 2000
    assert outcome.error() is None
    assert sorted(engine.positions) == sorted(engine.ends)
    assert engine.look_count == 1


def test_topic_without_new_records_costs_no_run() -> None:
    engine = FakeEngine(ends={"old": 10, "new": 10}, positions={"old": 10, "new": 7})
    scene = Scene(engine)
    assert scene.run().tally.rows == 3
    assert scene.topics_run() == ["new"]


@pytest.mark.parametrize("at", ["half done", "other id", "beyond the end"])
def test_quiet_topic_is_run_if_something_is_wrong_with_it(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(ends={"a": 10}, positions={"a": 10})
    at_place = place("a", 11 if at == "beyond the end" else 10, is_half_done=at == "half done")
    if at == "other id":
        other = attrs.evolve(at_place.identity, topics={"a": "former id"})
        at_place = attrs.evolve(at_place, identity=other)
    monkeypatch.setattr(FakeEngine, "place", lambda *_: at_place)
    engine.errors["a"] = Refusal("says what")
    scene = Scene(engine)
    assert scene.run().problems == {"raw.a": Problem("says what", EXIT_REFUSAL)}


@pytest.mark.parametrize("may_lose", [True, False])
def test_deleted_topic_is_an_error_unless_data_may_be_lost(may_lose: bool) -> None:
    engine = FakeEngine(ends={"a": 10, "b": 10}, positions={"a": 10, "b": 10})
    lossy = Flag("source.fail_on_data_loss", "false" if may_lose else "true")
    scene = Scene(engine, template(MANY, *EVERY, lossy), end_s=40)
    engine.errors["a"] = Refusal("a topic of the pipeline does not exist")
    scene.events[15] = lambda: engine.deleted.add("a")
    assert scene.run().problems.keys() == (set() if may_lose else {"raw.a"})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refusal("broken"), EXIT_REFUSAL),
        (Failure("away"), EXIT_FAILURE),
        (TypeError("a defect"), EXIT_REFUSAL),
    ],
)
def test_failed_table_stops_only_itself_and_is_named(error: Exception, code: int) -> None:
    engine = FakeEngine(ends={"a": 10, "b": 10, "c": 10}, errors={"b": error})
    scene = Scene(engine)
    outcome = scene.run()
    assert outcome.tally.rows == 20
    assert scene.topics_run() == ["a", "b", "c"]
    ended = outcome.error()
    assert ended is not None
    assert isinstance(ended, Refusal) == (code == EXIT_REFUSAL)
    assert str(ended).startswith("1 of 3 tables failed: raw.b (")
    assert str(error) in str(ended)
    assert [table for table, _ in engine.noted.values()] == ["raw.b"]
    assert any(line.startswith("raw.b: ") for line in scene.warnings)


def test_problem_is_forgotten_after_a_run_that_ends_well() -> None:
    """The topic has nothing new, and is run all the same, because its last run failed."""
    noted = {"a": ("raw.a", Problem("broken", EXIT_REFUSAL))}
    engine = FakeEngine(ends={"a": 10, "b": 10}, positions={"a": 10, "b": 10}, noted=noted)
    scene = Scene(engine)
    assert scene.run().error() is None
    assert scene.topics_run() == ["a"]
    assert engine.noted == {}


def test_run_of_one_table_keeps_the_problems_of_others() -> None:
    noted = {"a": ("raw.a", Problem("broken", EXIT_REFUSAL))}
    engine = FakeEngine(ends={"a": 10, "b": 10}, noted=dict(noted))
    scene = Scene(engine)
    assert scene.run(Order(table="raw.b")).error() is None
    assert scene.topics_run() == ["b"]
    assert engine.noted == noted


def test_new_topic_is_written_without_a_restart_and_old_ones_when_they_grow() -> None:
    engine = FakeEngine(ends={"a": 10})
    scene = Scene(engine, template(MANY, *EVERY), end_s=60)
    scene.events[15] = lambda: engine.ends.update(b=5)
    scene.events[35] = lambda: engine.ends.update(a=11)
    outcome = scene.run()
    assert scene.topics_run() == ["a", "b", "a"]
    assert outcome.tally.rows == 16
    assert outcome.tally.is_stopped
    assert not outcome.tally.is_cut_short
    assert engine.look_count == 6


def test_topic_whose_schema_is_added_later_is_written_then(tmp_path: Path) -> None:
    text = MANY.replace("{format: string}", '{format: json, schema: "@{topic}.ddl"}')
    many = Template.of(read_document(f"{tmp_path}/raw.yaml", text, {}), EVERY, {})
    engine = FakeEngine(ends={"a": 10})
    scene = Scene(engine, many, end_s=40)
    scene.events[25] = lambda: (tmp_path / "a.ddl").write_text("id BIGINT")
    outcome = scene.run()
    assert scene.topics_run() == ["a"]
    assert outcome.error() is None
    assert len(scene.warnings) == 1
    assert "a.ddl cannot be read" in scene.warnings[0]
    assert scene.alerts == scene.warnings


def test_failure_that_passes_is_tried_again_and_a_permanent_refusal_is_not() -> None:
    engine = FakeEngine(ends={"a": 10, "b": 10, "c": 10, "d": 10})
    engine.errors = {"a": Failure("away"), "b": Permanent("broken"), "c": Overtaken("taken over")}
    scene = Scene(engine, template(MANY, *EVERY), end_s=600)
    scene.events[20] = lambda: engine.errors.pop("a")
    outcome = scene.run()
    counts = {topic: scene.topics_run().count(topic) for topic in engine.ends}
    assert counts["a"] > 2
    assert (counts["b"], counts["c"], counts["d"]) == (1, 1, 1)
    assert outcome.problems.keys() == {"raw.b", "raw.c"}
    assert engine.positions == {"a": 10, "d": 10}
    assert len([line for line in scene.warnings if line.startswith("raw.a: away")]) == 1
    assert sorted(scene.alerts) == [
        "raw.a: away; the table is tried again",
        "raw.b: broken; this table is stopped, the others go on",
        "raw.c: taken over; this table is stopped, the others go on",
    ]
    assert len(scene.restarts) == counts["a"] - 1


def test_refused_table_is_written_once_its_cause_is_gone_and_tried_ever_less_often() -> None:
    engine = FakeEngine(ends={"a": 10, "b": 10}, errors={"a": Refusal("the table is gone")})
    scene = Scene(engine, template(MANY, *EVERY), end_s=20_000)
    scene.events[10_000] = engine.errors.clear
    outcome = scene.run()
    assert engine.positions == {"a": 10, "b": 10}
    assert outcome.error() is None
    assert 10 < scene.topics_run().count("a") < 20
    assert scene.warnings == [
        "raw.a: the table is gone; the table is tried again", "raw.a: the table continues",
    ]  # fmt: skip


def test_run_ends_if_all_tables_are_refused() -> None:
    """A run that can write nothing says so with its exit code, and does not hide it by waiting."""
    engine = FakeEngine(ends={"a": 10, "b": 10}, errors={"a": Refusal("gone")})
    engine.errors["b"] = Permanent("broken")
    scene = Scene(engine, template(MANY, *EVERY))
    assert scene.run().problems.keys() == {"raw.a", "raw.b"}
    assert sorted(scene.topics_run()) == ["a", "b"]


def test_table_whose_patience_is_over_is_stopped_and_the_run_ends_without_tables() -> None:
    engine = FakeEngine(ends={"a": 10}, errors={"a": Failure("away")})
    scene = Scene(engine, template(MANY, *EVERY, Flag("patience", "5 minutes")))
    outcome = scene.run()
    assert outcome.problems == {"raw.a": Problem("away", EXIT_FAILURE)}
    assert scene.now_s < 400


@pytest.mark.parametrize("kind", [Failure, Refusal])
def test_run_goes_on_after_brokers_were_away_or_refused_its_login(kind: type[Exception]) -> None:
    engine = FakeEngine(ends={"a": 10})
    scene = Scene(engine, template(MANY, *EVERY), end_s=100)
    scene.events[5] = lambda: engine.downs.append(kind("no broker answers"))

    def come_back() -> None:
        engine.ends["a"] = 12
        engine.downs.clear()

    scene.events[50] = come_back
    assert scene.run().tally.rows == 12
    assert scene.warnings[0] == "no broker answers; the run will retry"
    assert scene.alerts == scene.warnings[:1]
    assert len(scene.warnings) == 2


def test_run_ends_if_brokers_refuse_its_login_at_first_or_for_too_long() -> None:
    engine = FakeEngine(ends={"a": 10}, downs=[Refusal("the brokers deny the request")])
    scene = Scene(engine, template(MANY, *EVERY))
    with pytest.raises(Refusal, match="the brokers deny"):
        scene.run()
    assert scene.now_s == 0
    engine.downs.clear()
    scene.events[5] = lambda: engine.downs.append(Refusal("the brokers deny the request"))
    with pytest.raises(Refusal, match="the brokers deny"):
        scene.run()
    patience_s = scene.many.common.patience.total_seconds()
    assert patience_s <= scene.now_s < patience_s + 100
    assert len(scene.warnings) == 1


def test_run_to_the_end_fails_if_no_broker_answers() -> None:
    engine = FakeEngine(ends={"a": 10}, downs=[Failure("no broker answers")])
    with pytest.raises(Failure, match="no broker answers"):
        Scene(engine).run()


def test_end_of_the_jvm_ends_the_run() -> None:
    engine = FakeEngine(ends={"a": 10}, errors={"a": Py4JNetworkError("the JVM has ended")})
    with pytest.raises(Py4JNetworkError):
        Scene(engine, template(MANY, *EVERY)).run()


def test_answer_to_a_refusal_is_for_the_first_run_of_each_table_alone() -> None:
    engine = FakeEngine(ends={"a": 10, "b": 10}, positions={"a": 10, "b": 10})
    engine.errors["b"] = Failure("away")
    scene = Scene(engine, template(MANY, *EVERY), end_s=60)
    scene.events[15] = lambda: engine.errors.pop("b")
    scene.events[35] = lambda: engine.ends.update(a=12)
    given_up = Ranges.parse('{"a":{"0":[0,5]},"b":{"0":[0,6]}}')
    scene.run(Order(intent=Intent.ADOPT, given_up=given_up))
    intents = {topic: [i for t, i in engine.runs if t == topic] for topic in engine.ends}
    assert intents["a"] == [Intent.ADOPT, Intent.CONTINUE]
    assert set(intents["b"]) == {Intent.ADOPT}
    assert engine.given_up["b"] == Ranges.parse('{"b":{"0":[0,6]}}')


def test_each_run_of_a_table_ends_and_has_no_interval_of_its_own() -> None:
    engine = FakeEngine(ends={"a": 10})
    Scene(engine, template(MANY, *EVERY), end_s=5).run()
    assert engine.pipelines["a"].trigger.available_now


def test_pattern_without_topics_is_refused_or_waited_for() -> None:
    with pytest.raises(Refusal, match=r"source\.pattern: no topic matches"):
        Scene(FakeEngine()).run()
    engine = FakeEngine()
    scene = Scene(engine, template(MANY, *EVERY), end_s=30)
    scene.events[15] = lambda: engine.ends.update(a=1)
    assert scene.run().tally.rows == 1


@pytest.mark.parametrize("interval", [(), EVERY])
@pytest.mark.parametrize("at", ["more records", "silent leader", "new topic"])
def test_table_is_run_once_after_a_look_whatever_happens_during_its_run(
    interval: tuple[Flag, ...], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run reads to the end of the topic that it finds, which is not that of the look."""
    engine = FakeEngine(ends={"a": 10}, positions={"a": 3})
    look, written = engine.look, place("a", 12)
    if at == "silent leader":
        monkeypatch.setattr(FakeEngine, "look", lambda *_: Look(look({"a"}).topics, {}))
    if at == "new topic":
        new = attrs.evolve(written.identity, topics={"a": "new id"})
        written = attrs.evolve(written, identity=new)
    monkeypatch.setattr(FakeEngine, "place", lambda *_: written if engine.runs else place("a", 3))
    scene = Scene(engine, template(MANY, *interval), end_s=9)
    assert scene.run().error() is None
    assert scene.topics_run() == ["a"]


def test_table_that_another_command_holds_is_written_after_it() -> None:
    engine = FakeEngine(ends={"a": 10}, errors={"a": Held("process 7 writes")})
    scene = Scene(engine, template(MANY, *EVERY, Flag("patience", "5 minutes")), end_s=1200)
    scene.events[1000] = engine.errors.clear
    outcome = scene.run()
    assert engine.positions == {"a": 10}
    assert outcome.error() is None
    assert len(scene.warnings) == 1
    assert scene.alerts == []
    assert 10 < len(engine.runs) < 20


@pytest.mark.parametrize("answer", [Held("process 7 writes"), Refusal("no right"), None])
def test_refusal_or_deletion_of_a_topic_ends_the_outage_of_its_table(
    answer: Refusal | None,
) -> None:
    """A failure at another time is the first of an outage with the whole patience."""
    engine = FakeEngine(ends={"a": 10, "b": 10}, errors={"a": Failure("away")})
    flags = (Flag("patience", "5 minutes"), Flag("source.fail_on_data_loss", "false"))
    scene = Scene(engine, template(MANY, *EVERY, *flags), end_s=1400)
    if answer is None:
        scene.events[20] = lambda: engine.deleted.add("a")
        scene.events[800] = engine.deleted.clear
    else:
        scene.events[20] = lambda: engine.errors.update(a=answer)
        scene.events[800] = lambda: engine.errors.update(a=Failure("away"))
    scene.events[1050] = engine.errors.clear
    assert scene.run().error() is None
    assert engine.positions == {"a": 10, "b": 10}


def test_one_thread_asks_for_the_controls_of_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The families of metrics, which tables share, are created with them."""
    threads: list[int] = []

    def control_of(self: Scene, pipeline: Pipeline) -> Control:
        threads.append(get_ident())
        return Control()

    monkeypatch.setattr(Scene, "control_of", control_of)
    Scene(FakeEngine(ends={"a": 10, "b": 10})).run(executor=ThreadPoolExecutor(2))
    assert threads == [get_ident()] * 2


@pytest.mark.parametrize("writes", [False, True])
def test_slow_attempts_of_a_table_use_up_its_patience_unless_one_writes_a_batch(
    writes: bool,
) -> None:
    """Each attempt takes two minutes, in which it writes a batch or none."""

    class Slow(FakeEngine):
        def run(self, pipeline: Pipeline, intent: Intent, control: Control, *more: Any) -> Tally:
            scene.now_s += 120
            if writes:
                control.report(BATCH)
            return super().run(pipeline, intent, control, *more)

    engine = Slow(ends={"a": 10}, errors={"a": Failure("away")})
    scene = Scene(engine, template(MANY, *EVERY, Flag("patience", "5 minutes")), end_s=5000)
    outcome = scene.run()
    assert (scene.now_s < 1000) is not writes
    tries = [line for line in scene.warnings if line.endswith("the table is tried again")]
    assert (len(tries) == 1) is not writes
    assert outcome.problems.keys() == {"raw.a"}


def test_wait_for_a_turn_is_no_time_in_which_a_table_was_well() -> None:
    engine = FakeEngine(ends={"a": 10}, errors={"a": Failure("away")})
    scene = Scene(engine, template(MANY, *EVERY, Flag("patience", "5 minutes")), end_s=5000)

    class Busy(Inline):
        def submit(self, task: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
            scene.now_s += 100
            return super().submit(task, *args, **more)

    assert scene.run(executor=Busy()).problems == {"raw.a": Problem("away", EXIT_FAILURE)}
    assert not scene.many.common.trigger.available_now
    assert scene.now_s < 1000


def test_turn_of_a_table_that_takes_long_to_open_has_a_batch_all_the_same() -> None:
    """Otherwise each of its turns would end before the first batch, and nobody would notice."""
    stops: list[bool] = []

    class Slow(FakeEngine):
        def run(self, pipeline: Pipeline, intent: Intent, control: Control, *more: Any) -> Tally:
            scene.now_s += 90
            stops.append(control.is_stopping())
            control.report(BATCH)
            stops.append(control.is_stopping())
            return super().run(pipeline, intent, control, *more)

    scene = Scene(Slow(ends={"a": 10}), template(MANY, *EVERY), end_s=100)
    scene.run()
    assert stops == [False, True]


def test_answer_to_a_refusal_is_not_for_topics_that_appear_later() -> None:
    engine = FakeEngine(ends={"a": 10})
    scene = Scene(engine, template(MANY, *EVERY), end_s=40)
    scene.events[15] = lambda: engine.ends.update(b=5)
    scene.run(Order(intent=Intent.ADOPT))
    assert engine.runs == [("a", Intent.ADOPT), ("b", Intent.CONTINUE)]


def test_problems_are_stored_as_soon_as_the_store_is_back() -> None:
    engine = FakeEngine(ends={"a": 10, "b": 10}, errors={"a": Refusal("broken")})
    engine.is_store_away = True
    scene = Scene(engine, template(MANY, *EVERY), end_s=40)
    scene.events[20] = lambda: setattr(engine, "is_store_away", False)
    scene.run()
    assert engine.noted == {"a": ("raw.a", Problem("broken", EXIT_REFUSAL))}


def test_topics_of_an_interrupted_first_run_begin_where_the_file_says() -> None:
    engine = FakeEngine(ends={"a": 10, "b": 10}, errors={"b": Failure("away")})
    many = template(MANY, Flag("source.start", "latest"))
    Scene(engine, many).run()
    engine.errors.clear()
    engine.ends["c"] = 10
    Scene(engine, many).run()
    starts = {topic: pipeline.source.start.at_end for topic, pipeline in engine.pipelines.items()}
    assert starts == {"a": True, "b": True, "c": False}


def test_deleted_topic_that_the_file_names_is_an_error_even_if_data_may_be_lost() -> None:
    engine = FakeEngine(ends={"a": 10}, positions={"a": 10}, deleted={"a"})
    engine.errors["a"] = Refusal("a topic of the pipeline does not exist")
    text = MANY.replace('pattern: "shop[.].*"', "topics: [a]")
    scene = Scene(engine, template(text, Flag("source.fail_on_data_loss", "false")))
    assert scene.run().problems.keys() == {"raw.a"}


class Deleting(FakeEngine):
    """Brokers on which topic a is deleted while its table is written for the first time."""

    def run(self, pipeline: Pipeline, *more: Any) -> Tally:
        if pipeline.source.topics == ("a",) and not self.runs:
            self.deleted.add("a")
            self.errors["a"] = Refusal("a topic of the pipeline does not exist")
        return super().run(pipeline, *more)


@pytest.mark.parametrize("interval", [(), EVERY])
def test_topic_that_is_deleted_during_its_run_is_no_problem_if_it_may_be(
    interval: tuple[Flag, ...],
) -> None:
    engine = Deleting(ends={"a": 10, "b": 10})
    lossy = Flag("source.fail_on_data_loss", "false")
    scene = Scene(engine, template(MANY, *interval, lossy), end_s=40)
    assert scene.run().problems == {}
    assert scene.warnings == []
    assert scene.topics_run() == ["a", "b"]


def test_recreated_topic_is_run_although_its_deletion_was_no_problem() -> None:
    engine = Deleting(ends={"a": 10})
    lossy = Flag("source.fail_on_data_loss", "false")
    scene = Scene(engine, template(MANY, *EVERY, lossy), end_s=40)
    scene.events[15] = engine.deleted.clear
    scene.events[16] = engine.errors.clear
    assert scene.run().tally.rows == 10
    assert scene.topics_run() == ["a", "a"]


def test_answer_to_a_refusal_is_not_repeated_once_the_checkpoint_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second run with --from-start would delete what the first one has written."""
    engine = FakeEngine(ends={"a": 10}, positions={"a": 10}, errors={"a": Failure("away")})
    former, new = place("a", 10), place("a", 0)
    new = attrs.evolve(new, identity=attrs.evolve(new.identity, pipeline_id="new"))
    monkeypatch.setattr(FakeEngine, "place", lambda *_: new if len(engine.runs) > 1 else former)
    scene = Scene(engine, template(MANY, *EVERY), end_s=600)
    scene.events[500] = engine.errors.clear
    scene.run(Order(intent=Intent.FROM_START))
    intents = [intent for _, intent in engine.runs]
    assert intents[:3] == [Intent.FROM_START, Intent.FROM_START, Intent.CONTINUE]
    assert set(intents[2:]) == {Intent.CONTINUE}
