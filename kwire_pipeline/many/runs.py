"""The run of many tables: looks at all topics, and runs each table that has new records.

Rules of this file: one thread, that of `TableRuns.run`, decides; the other threads each run one
table, and otherwise only record that it has written a batch. A table that fails stops only itself;
the whole run ends only if the JVM ends or, in a run to the end of the topics, if the brokers do not
answer.
"""

import time
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future, wait
from typing import Final, Protocol, TypeAlias

import attrs
from py4j.protocol import Py4JNetworkError

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Template
from kwire_pipeline.config.values import Trigger
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.losses import NOTHING
from kwire_pipeline.engine.offline import Place
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.query import Control
from kwire_pipeline.engine.reporting.figures import Batch, Tally
from kwire_pipeline.errors import EXIT_REFUSAL, Failure, Held, Permanent, Refusal
from kwire_pipeline.explain import explain, is_lost_jvm
from kwire_pipeline.many.plan import TablePlan, plan_tables, select
from kwire_pipeline.many.state import Look, Problem, TableState
from kwire_pipeline.patience import POLL_S, Outage

SLICE_S: Final = 60.0
"""The longest turn of a table in a run at an interval, in seconds; its last batch is finished.

A turn has at least one batch: opening many tables at once can take longer than this.
"""
Finished: TypeAlias = tuple[Tally, Place | None]


class Engine(Protocol):
    """Spark, the brokers and the store, as needed by a run of many tables."""

    def written_topics(self) -> set[str]:
        """Return the topics that have a checkpoint."""

    def first_topics(self, started: Collection[str]) -> Collection[str] | None:
        """Return the topics that the first run found at first; None if there was no run."""

    def note_first(self, topics: Collection[str]) -> None:
        """Store the topics that the first run found at first."""

    def topics(self, started: Collection[str]) -> list[str]:
        """Return the topics of the file; raise Failure if no broker answers."""

    def look(self, topics: Collection[str]) -> Look:
        """Return the topics that exist, and their ends."""

    def place(self, pipeline: Pipeline) -> Place | None:
        """Return the position of a table's checkpoint; None if there is none."""

    def run(self, pipeline: Pipeline, intent: Intent, control: Control, given_up: Ranges) -> Tally:
        """Run one table until the end of its topic."""

    def problems(self) -> Mapping[str, tuple[str, Problem]]:
        """Return the table and problem of each topic that was failing when the last run ended."""

    def note_problems(self, problems: Mapping[str, tuple[str, Problem]]) -> bool:
        """Store each topic's problem, with its table, for `status`; return whether that worked."""


@attrs.frozen(kw_only=True)
class Outside:
    """A run's connection to the outside; each table has its own control."""

    control_of: Callable[[Pipeline], Control]
    warn: Callable[[str], None] = lambda text: None
    alert: Callable[[str], None] = lambda text: None
    is_stopping: Callable[[], bool] = lambda: False


@attrs.frozen
class Order:
    """The user's flags: which table, the answer to a refusal, and the offsets given up."""

    table: str | None = None
    intent: Intent = Intent.CONTINUE
    given_up: Ranges = NOTHING


@attrs.define
class Outcome:
    """The figures of all tables, and the tables that failed."""

    tally: Tally = attrs.field(factory=Tally)
    table_count: int = 0
    problems: dict[str, Problem] = attrs.field(factory=dict)
    """By the table's name."""

    def error(self) -> Refusal | Failure | None:
        """Return the error with which the run ends, if a table failed."""
        if not self.problems:
            return None
        shown = [f"{table} ({problem.text})" for table, problem in sorted(self.problems.items())]
        text = f"{len(shown)} of {self.table_count} tables failed: {'; '.join(shown[:3])}"
        if len(shown) > 3:
            text += f"; and {len(shown) - 3} more, which `status` shows"
        codes = {problem.code for problem in self.problems.values()}
        return Refusal(text) if EXIT_REFUSAL in codes else Failure(text)


def wait_for_one(running: Collection[Future[Finished]]) -> None:
    """Wait until a table's run has ended, or until it is time to check the clock."""
    if running:
        wait(running, POLL_S, return_when="FIRST_COMPLETED")
    else:
        time.sleep(POLL_S)


@attrs.define(kw_only=True)
class TableRuns:
    """The tables of one run, and the state of each."""

    template: Template
    engine: Engine
    outside: Outside
    executor: Executor
    order: Order = Order()
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[Collection[Future[Finished]]], None] = wait_for_one
    _states: dict[str, TableState] = attrs.field(factory=dict)
    """By topic."""
    _running: dict[Future[Finished], TableState] = attrs.field(factory=dict)
    _look: Look | None = None
    _next_look_s: float = 0.0
    _started: set[str] = attrs.field(factory=set)
    _topics: set[str] = attrs.field(factory=set)
    """The topics of the last plan."""
    _former: Mapping[str, tuple[str, Problem]] = attrs.field(factory=dict)
    """The problems of the last run; each stays until a run of its table succeeds."""
    _first: Collection[str] | None = None
    """The topics that the first run found at first; None before that."""
    _outage: Outage = attrs.field(init=False)
    _outcome: Outcome = attrs.field(factory=Outcome)
    _is_ending: bool = False
    _noted: Mapping[str, tuple[str, Problem]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._outage = Outage(self.template.common.patience.total_seconds())

    def run(self) -> Outcome:
        """Run all tables until the end of their topics, or until a stop is requested."""
        self._started = self.engine.written_topics()
        self._former = self._noted = self.engine.problems()
        self._first = self.engine.first_topics(self._started)
        try:
            while not self._is_over():
                self._look_around()
                self._start_due()
                if self._running or self._is_endless:
                    self.pause(self._running.keys())
                self._collect()
        finally:
            self._is_ending = True
            self.executor.shutdown(cancel_futures=True)
        tally = self._outcome.tally
        tally.is_stopped = self.outside.is_stopping()
        tally.is_cut_short = tally.is_stopped and not self._is_endless
        self._outcome.table_count = len(self._states)
        self._outcome.problems = dict(self._problems().values())
        return self._outcome

    @property
    def _is_endless(self) -> bool:
        return self.template.common.trigger.interval is not None

    def _is_over(self) -> bool:
        if self.outside.is_stopping():
            waiting = [future for future in self._running if future.cancel()]
            for future in waiting:
                self._running.pop(future).is_running = False
            return not self._running
        if self._running or self._look is None:
            return False
        if self._is_endless:
            states = self._states.values()
            return bool(states) and all(state.is_without_hope for state in states)
        return not any(map(self._is_due, self._states.values()))

    # Looks ---------------------------------------------------------------------------------
    def _look_around(self) -> None:
        """Query the brokers about all topics at once, if the next look is due."""
        now_s = self.clock()
        interval = self.template.common.trigger.interval
        if self._look is not None and (interval is None or now_s < self._next_look_s):
            return
        if now_s < self._next_look_s:
            return
        try:
            topics = self.engine.topics(self._started)
            look = self.engine.look(topics)
        except (Failure, Refusal) as error:
            if not self._waits_after(error, now_s):
                raise
            return
        if (elapsed_s := self._outage.on_success(now_s)) is not None:
            self.outside.warn(f"the run continues after {elapsed_s:.0f} seconds")
        self._plan(topics)
        if self._first is None:
            self.engine.note_first(topics)
            self._first = topics
        self._note_problems()
        self._look = look
        self._next_look_s = now_s + (0.0 if interval is None else interval.total_seconds())

    def _waits_after(self, error: Failure | Refusal, now_s: float) -> bool:
        """Return whether the look is repeated later.

        Brokers that answered before may refuse a login for a while, as when a password changes.
        """
        is_wrong_setup = isinstance(error, Refusal) and self._look is None
        if is_wrong_setup or not self._is_endless:
            return False
        wait_s = self._outage.on_failure(now_s)
        if wait_s is None:
            return False
        if self._outage.is_first_failure:
            self.outside.warn(f"{error}; the run will retry")
            self.outside.alert(f"{error}; the run will retry")
        self._next_look_s = now_s + wait_s
        return True

    def _plan(self, topics: Collection[str]) -> None:
        """Plan new topics, and retry topics that had a problem."""
        planned = {topic: s.pipeline for topic, s in self._states.items() if s.pipeline is not None}
        if not topics and not self._is_endless:
            pattern = self.template.common.source.pattern
            raise Refusal(f"source.pattern: no topic matches {pattern}")
        if set(topics) == self._topics and len(planned) == len(self._states):
            return
        self._topics = set(topics)
        plans = plan_tables(
            self.template, topics, self._started, first=self._first, planned=planned
        )
        if self.order.table is not None:
            plans = select(plans, self.order.table)
        for plan in plans:
            if plan.topic not in planned:
                self._take(plan)

    def _take(self, plan: TablePlan) -> None:
        common = self.template.common
        state = self._states.get(plan.topic)
        if state is None:
            state = self._states[plan.topic] = TableState(
                topic=plan.topic,
                table=plan.table,
                pipeline=None,
                intent=self.order.intent if self._look is None else Intent.CONTINUE,
                outage=Outage(common.patience.total_seconds()),
            )
        if plan.pipeline is None:
            problem = Problem(plan.problem or "", EXIT_REFUSAL)
            if state.problem != problem:
                self._alert(state, problem.text)
            state.problem = problem
            return
        state.pipeline = attrs.evolve(plan.pipeline, trigger=Trigger())
        state.problem = self._former[plan.topic][1] if plan.topic in self._former else None
        if plan.topic in self._started:
            state.place = self._read_place(state.pipeline)

    def _read_place(self, pipeline: Pipeline) -> Place | None:
        """Return the position of a checkpoint; None if a run of the table has to determine it."""
        place = self._read(pipeline)
        return place if place is not None and place.is_at_rest else None

    def _read_id(self, pipeline: Pipeline) -> str | None:
        """Return the id in a checkpoint's identity; None without one, or if it is unknown."""
        place = self._read(pipeline)
        return None if place is None else place.identity.pipeline_id

    def _read(self, pipeline: Pipeline) -> Place | None:
        try:
            return self.engine.place(pipeline)
        except Exception as error:
            if explain(error, None) is None:
                raise
            return None

    # Runs of tables ------------------------------------------------------------------------
    @property
    def _may_go(self) -> bool:
        """True if topics may be deleted; topics that the file names must exist."""
        source = self.template.common.source
        return source.pattern is not None and not source.fail_on_data_loss

    def _is_due(self, state: TableState) -> bool:
        may_lose = not self.template.common.source.fail_on_data_loss
        return self._look is not None and state.is_due(
            self._look, self.clock(), may_lose=may_lose, may_go=self._may_go
        )

    def _is_gone(self, topic: str) -> bool:
        """Return whether a topic that may be deleted no longer exists."""
        try:
            return self._may_go and topic not in self.engine.look([topic]).topics
        except (Failure, Refusal):
            return False

    def _start_due(self) -> None:
        if self.outside.is_stopping():
            return
        for state in self._states.values():
            if self._is_due(state) and state.pipeline is not None:
                state.on_start()
                control = self.outside.control_of(state.pipeline)
                future = self.executor.submit(self._run_table, state.pipeline, state, control)
                self._running[future] = state

    def _run_table(self, pipeline: Pipeline, state: TableState, control: Control) -> Finished:
        """Run one table, in a thread of the executor; it may have waited for its turn."""
        end_s = self.clock() + SLICE_S

        def report(batch: Batch) -> None:
            state.has_written = True
            control.report(batch)

        def is_stopping() -> bool:
            has_had_its_time = self._is_endless and state.has_written and self.clock() >= end_s
            return self._is_ending or has_had_its_time or self.outside.is_stopping()

        if state.intent is not Intent.CONTINUE:
            state.former_id = self._read_id(pipeline)
        own = attrs.evolve(control, report=report, is_stopping=is_stopping)
        given_up = [part for part in self.order.given_up.ranges if part.topic == state.topic]
        tally = self.engine.run(pipeline, state.intent, own, Ranges(tuple(given_up)))
        return tally, self._read_place(pipeline)

    def _collect(self) -> None:
        """Collect the results of tables whose runs have ended."""
        ended = [future for future in self._running if future.done()]
        for future in ended:
            state = self._running.pop(future)
            error = future.exception()
            if error is None:
                tally, place = future.result()
                self._outcome.tally.merge(tally)
                if (elapsed_s := state.outage.on_success(self.clock())) is not None:
                    self._warn(state, f"the table continues after {elapsed_s:.0f} seconds")
                elif state.refusals:
                    self._warn(state, "the table continues")
                state.on_end(place, self._look)
            else:
                self._on_failure(state, error)
        if ended:
            self._note_problems()

    def _on_failure(self, state: TableState, error: BaseException) -> None:
        is_fatal = not isinstance(error, Exception) or is_lost_jvm(error)
        if is_fatal or isinstance(error, Py4JNetworkError):
            raise error
        assert isinstance(error, Exception)
        problem = explain(error, self.template.common.transform)
        if problem is None:  # A defect, whose traceback is needed.
            self.outside.warn("".join(traceback.format_exception(error)))
            problem = Permanent(f"{type(error).__name__}: {error}")
        if self._is_gone(state.topic):
            state.on_gone(self._look)
            return
        if state.intent is not Intent.CONTINUE and state.pipeline is not None:
            state.on_identity(self._read_id(state.pipeline))
        is_same = state.problem == Problem.of(problem)
        state.on_failure(problem, self.clock(), is_endless=self._is_endless)
        if state.is_stopped:
            self._alert(state, f"{problem}; this table is stopped, the others go on")
        elif not is_same if isinstance(problem, Refusal) else state.outage.is_first_failure:
            tell = self._warn if isinstance(problem, Held) else self._alert
            tell(state, f"{problem}; the table is tried again")
        if not state.is_stopped and state.pipeline is not None:
            self.outside.control_of(state.pipeline).on_restart()

    def _warn(self, state: TableState, text: str) -> None:
        self.outside.warn(f"{state.table}: {text}")

    def _alert(self, state: TableState, text: str) -> None:
        """Warn, and notify the hook unless the run is about to end with this error."""
        self._warn(state, text)
        if self._is_endless:
            self.outside.alert(f"{state.table}: {text}")

    def _problems(self) -> dict[str, tuple[str, Problem]]:
        """Return the table and the problem of each topic that has one."""
        return {
            topic: (state.table, state.problem)
            for topic, state in self._states.items()
            if state.problem is not None
        }

    def _note_problems(self) -> None:
        """Store the problems if they changed, and keep the problems of tables that are not run."""
        problems = self._problems()
        if self.order.table is not None:
            problems = {t: p for t, p in self._former.items() if t not in self._states} | problems
        if problems != self._noted and self.engine.note_problems(problems):
            self._noted = problems
