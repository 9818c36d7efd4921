"""The tables of a command: the file's only table, one of many, or all of many in one session.

Rules of this file: if a command fails for one table, it continues with the others, and returns the
highest exit code. A topic without a checkpoint has nothing to inspect yet.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeAlias

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.commands.show import show, warner
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Loaded, Template, common_of
from kwire_pipeline.engine.session import open_session
from kwire_pipeline.errors import EXIT_REFUSAL, Refusal
from kwire_pipeline.explain import explain, is_lost_jvm
from kwire_pipeline.many.engine import SparkEngine
from kwire_pipeline.many.plan import TablePlan, plan_tables, select
from kwire_pipeline.many.state import Problem

Act: TypeAlias = Callable[[SparkSession, Pipeline], int]
"""A command for one table; it returns the exit code."""


@attrs.frozen(kw_only=True)
class Chosen:
    """One of the tables of a command."""

    plan: TablePlan
    is_started: bool
    failure: Problem | None = None
    """The reason why the last run did not write the table."""

    @property
    def problem(self) -> str | None:
        return None if self.failure is None else self.failure.text


@contextmanager
def session_of(loaded: Loaded) -> Iterator[SparkSession]:
    """Open the session of a command during a block."""
    spark = open_session(common_of(loaded))
    try:
        yield spark
    finally:
        spark.stop()


def check_name(pipeline: Pipeline, table: str | None) -> None:
    """Raise Refusal if the flag `--table` names a table that is not the file's."""
    if table not in (None, pipeline.table.name):
        raise Refusal(f"--table {table}: the table of this file is {pipeline.table.name}")


def choose(spark: SparkSession, template: Template, table: str | None) -> list[Chosen]:
    """Return the tables of a command, in the order of their topics."""
    with closing(SparkEngine(spark, template)) as engine:
        started = engine.written_topics()
        first = engine.first_topics(started)
        plans = select(plan_tables(template, engine.topics(started), started, first=first), table)
        problems = engine.problems()
    return [
        Chosen(
            plan=plan,
            is_started=plan.topic in started,
            failure=problems[plan.topic][1] if plan.topic in problems else None,
        )
        for plan in plans
    ]


def on_tables(loaded: Loaded, table: str | None, act: Act, *, with_new: bool = False) -> int:
    """Call a command for each of its tables; ``with_new`` also for those without a checkpoint."""
    if isinstance(loaded, Pipeline):
        check_name(loaded, table)
        with session_of(loaded) as spark:
            return act(spark, loaded)
    code = 0
    with session_of(loaded) as spark:
        for chosen in choose(spark, loaded, table):
            code = max(code, on_table(spark, loaded.common, chosen, act, with_new=with_new))
    return code


def on_table(
    spark: SparkSession,
    common: Pipeline,
    chosen: Chosen,
    act: Act,
    *,
    with_new: bool = False,
    is_quiet: bool = False,
) -> int:
    """Call a command for one of many tables; return its exit code.

    With ``is_quiet`` the output does not begin with the table's name.
    """
    plan = chosen.plan
    if plan.pipeline is None:
        return report(common, plan.table, Problem(plan.problem or "", EXIT_REFUSAL))
    if not chosen.is_started and not with_new:
        if chosen.problem is not None:
            text = f"not written: {chosen.problem}"
            return report(common, plan.table, Problem(text, EXIT_REFUSAL))
        show(common, [f"{plan.table} (topic {plan.topic}): not written yet"])
        return 0
    if not is_quiet:
        show(common, [f"{plan.table} (topic {plan.topic}):"])
    try:
        return act(spark, plan.pipeline)
    except Exception as error:
        problem = None if is_lost_jvm(error) else explain(error, plan.pipeline.transform)
        if problem is None or isinstance(error, BrokenPipeError):
            raise
        return report(common, plan.table, Problem.of(problem))


def report(common: Pipeline, table: str, problem: Problem) -> int:
    """Print why a command failed for a table; return its exit code."""
    warner(common)(" ".join(f"{table}: {problem.text}".split()))
    return problem.code
