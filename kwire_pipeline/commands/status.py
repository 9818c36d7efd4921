"""`kwire-pipeline status`: offsets, lag, the last batch, dead letters and table sizes.

With ``--page`` it also writes a page of HTML about the last 24 hours.
"""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.commands.show import show
from kwire_pipeline.commands.tables import (
    Chosen,
    check_name,
    choose,
    on_table,
    report,
    session_of,
)
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.config.template import Loaded, common_of
from kwire_pipeline.day.history import read_day
from kwire_pipeline.day.page import Page, Section
from kwire_pipeline.engine import offsets
from kwire_pipeline.engine.batch import by_reason
from kwire_pipeline.engine.cluster import Cluster, topics_left
from kwire_pipeline.engine.offline import state_of
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import EXIT_REFUSAL, Refusal
from kwire_pipeline.explain import explain
from kwire_pipeline.many.notes import read_problems
from kwire_pipeline.many.state import Problem
from kwire_pipeline.tables.table import Size, of_topics


@attrs.frozen(kw_only=True)
class Status:
    """The state of a pipeline and of its tables."""

    name: str
    table: str
    position: Offsets
    ends: Offsets
    lag: int
    batch_id: int | None
    """The last completed batch; None before the first one."""
    is_half_done: bool
    """True if a run began another batch and did not finish it."""
    rows: int
    files: int
    bytes: int
    dead_letters: Mapping[str, int]
    """The dead letters by reason."""
    problem: str | None = None
    """The reason why the last run of the table failed."""

    def words(self) -> list[str]:
        """Return the lines for human readers."""
        half_done = "; a later one is half done" if self.is_half_done else ""
        lines = [
            f"pipeline {self.name}: last batch {self.batch_id}{half_done}; lag {self.lag:,}",
            f"table: {self.rows:,} rows in {self.files:,} files of {self.bytes:,} bytes",
        ]
        for topic, partitions in sorted(self.ends.items()):
            for partition, end in sorted(partitions.items()):
                position = self.position.get(topic, {}).get(partition, 0)
                lines.append(f"  {topic}-{partition}: offset {position:,} of {end:,}")
        lines.append(f"dead letters: {sum(self.dead_letters.values()):,}")
        lines += [f"  {count:,}: {reason}" for reason, count in sorted(self.dead_letters.items())]
        if self.problem is not None:
            lines.append(f"the last run failed: {self.problem}")
        return lines


def status(
    loaded: Loaded, *, as_json: bool = False, page: str | None = None, table: str | None = None
) -> int:
    """Print the status of a pipeline, or of each table of many, and write the page of the day."""
    if page is not None and not Path(page).absolute().parent.is_dir():
        raise Refusal(f"--page {page}: there is no such folder: create it, or correct the path")
    if isinstance(loaded, Pipeline):
        check_name(loaded, table)
    output = Report(common_of(loaded), as_json=as_json, has_page=page is not None)
    code = 0
    with session_of(loaded) as spark:
        if isinstance(loaded, Pipeline):
            output.show_only(spark, loaded)
        else:
            for chosen in choose(spark, loaded, table):
                code = max(code, output.show_chosen(spark, chosen))
    if page is not None:
        output.write_page(Path(page))
    return code


@attrs.define
class Report:
    """The output of the command: lines, and the sections of a page if there is one."""

    common: Pipeline
    as_json: bool = attrs.field(kw_only=True)
    has_page: bool = attrs.field(kw_only=True)
    sections: list[Section] = attrs.field(factory=list)
    now: datetime.datetime = attrs.field(factory=lambda: datetime.datetime.now(datetime.UTC))

    def show_only(self, spark: SparkSession, pipeline: Pipeline) -> None:
        """Print the status of the file's only table."""
        problems = read_problems(Folder(spark, pipeline.checkpoint))
        self.show_table(spark, pipeline, problems.get(pipeline.name, (None, None))[1])

    def show_table(self, spark: SparkSession, pipeline: Pipeline, failure: Problem | None) -> None:
        """Print the status of a table that is written."""
        problem = None if failure is None else failure.text
        result = attrs.evolve(read_status(spark, pipeline), problem=problem)
        show(self.common, [json.dumps(attrs.asdict(result))] if self.as_json else result.words())
        if self.has_page:
            self.sections.append(
                Section(
                    table=result.table,
                    topics=", ".join(sorted(result.ends)),
                    lag=result.lag,
                    batch_id=result.batch_id,
                    is_half_done=result.is_half_done,
                    rows=result.rows,
                    files=result.files,
                    bytes=result.bytes,
                    problem=problem,
                    problem_at=None if failure is None else failure.at,
                    day=read_day(spark, pipeline, self.now),
                )
            )

    def show_chosen(self, spark: SparkSession, chosen: Chosen) -> int:
        """Print the status of one of many tables; for a table never written, print its problem."""
        plan = chosen.plan
        problem = plan.problem or chosen.problem

        def act(spark: SparkSession, pipeline: Pipeline) -> int:
            try:
                self.show_table(spark, pipeline, chosen.failure)
            except Exception as error:
                cause = explain(error, pipeline.transform)
                self.sections.append(
                    Section(table=plan.table, topics=plan.topic, problem=str(cause or error))
                )
                raise
            return 0

        if chosen.is_started and plan.pipeline is not None:
            return on_table(spark, self.common, chosen, act, is_quiet=self.as_json)
        self.sections.append(Section(table=plan.table, topics=plan.topic, problem=problem))
        words = "not written yet" if problem is None else f"not written: {problem}"
        plain = json.dumps({"table": plan.table, "problem": problem})
        text = f"{plan.table} (topic {plan.topic}): {words}"
        show(self.common, [plain if self.as_json else text])
        if problem is None:
            return 0
        return report(self.common, plan.table, Problem(words, EXIT_REFUSAL))

    def write_page(self, path: Path) -> None:
        """Write the page of all tables."""
        secrets = secrets_of(self.common)
        page = Page(self.common.name, self.now, lambda text: redact(text, secrets))
        try:
            path.write_text(page.html(self.sections), encoding="utf-8")
        except OSError as error:
            raise Refusal(f"--page {path}: cannot be written: {error.strerror}") from None


def read_status(spark: SparkSession, pipeline: Pipeline) -> Status:
    """Read the status from checkpoint, brokers and tables."""
    set_session(spark)
    state = state_of(spark, pipeline)
    with Cluster.of(spark, pipeline) as cluster:
        topics = topics_left(pipeline, cluster, state.identity.topics)
        ends = cluster.ends(topics.values())
    letters = state.destinations.dead_letters
    own = None
    if letters is not None and letters.exists():
        own = of_topics(letters.read(), state.identity.topics)
    table = state.destinations.table
    size = table.size() if table.exists() else Size(rows=0, files=0, bytes=0)
    return Status(
        name=pipeline.name,
        table=pipeline.table.name,
        position=state.position,
        ends=ends,
        lag=offsets.lag(state.position, ends),
        batch_id=state.batch_id,
        is_half_done=state.is_half_done,
        rows=size.rows,
        files=size.files,
        bytes=size.bytes,
        dead_letters={} if own is None else by_reason(own),
    )
