"""The plan of a file for many tables: a pipeline of one table for each topic.

Rules of this file: no I/O except for the files that the pipeline's file names; a topic that cannot
have a pipeline gets a problem, which does not affect the others; a topic that has a checkpoint
keeps its table.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

import attrs

from kwire_pipeline.config.document import ConfigError
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.rules import ORPHANS, is_below
from kwire_pipeline.config.template import TOPIC, Template, identifier
from kwire_pipeline.config.values import Start
from kwire_pipeline.errors import Refusal


@attrs.frozen(kw_only=True)
class TablePlan:
    """A topic and its table."""

    topic: str
    table: str
    pipeline: Pipeline | None = None
    """The pipeline of this table alone; None if there is a problem."""
    problem: str | None = None


def plan_tables(
    template: Template,
    topics: Iterable[str],
    started: Collection[str],
    *,
    first: Collection[str] | None = None,
    planned: Mapping[str, Pipeline] = MappingProxyType({}),
) -> list[TablePlan]:
    """Return the table of each topic, sorted by topic.

    ``started`` are the topics that have a checkpoint, ``planned`` the topics that a run already
    writes, and ``first`` the topics that the first run found at first (None if this is the first
    look). Any other topic appeared later, and is read from its first record, wherever the others
    began. A deleted topic keeps its table.
    """
    plans = {}
    tables: dict[str, str] = {}
    topics = set(topics)
    early = topics if first is None else {*first, *started}
    for topic in sorted(
        {*topics, *started, *planned},
        key=lambda name: (name not in planned, name not in started, name not in topics, name),
    ):
        if topic not in topics:
            for name in _names(template, topic):
                tables.setdefault(name, topic)
            continue
        plan = TablePlan(topic=topic, table=template.table_of(topic), pipeline=planned.get(topic))
        if plan.pipeline is None:
            plan = _plan(template, topic, is_late=topic not in early)
        if plan.pipeline is not None:
            problem = next(_collisions(template, topic, tables), None)
            if problem is None:
                tables |= dict.fromkeys(_names(template, topic), topic)
            else:
                plan = attrs.evolve(plan, pipeline=None, problem=problem)
        plans[topic] = plan
    return [plans[topic] for topic in sorted(plans)]


def _plan(template: Template, topic: str, *, is_late: bool) -> TablePlan:
    table = template.table_of(topic)
    if topic.startswith("."):
        problem = (
            f"the name of topic {topic} begins with a dot, which hides its checkpoint: leave it "
            "out of source.pattern, and give it a file of its own"
        )
        return TablePlan(topic=topic, table=table, problem=problem)
    try:
        pipeline = template.pipeline_of(topic)
    except ConfigError as error:
        return TablePlan(topic=topic, table=table, problem=str(error).splitlines()[0])
    if is_late and pipeline.source.start.offsets is None:
        pipeline = attrs.evolve(pipeline, source=attrs.evolve(pipeline.source, start=Start()))
    return TablePlan(topic=topic, table=table, pipeline=pipeline)


def _names(template: Template, topic: str) -> list[str]:
    """Return the names of tables reserved for this topic; catalogs may ignore case."""
    names = [template.table_of(topic)]
    for other in (template.common.dead_letters.table, template.common.table.deletions):
        if other is not None and TOPIC in other:
            names += [other.replace(TOPIC, identifier(topic))]
    return [name.lower() for name in names]


def _collisions(template: Template, topic: str, tables: dict[str, str]) -> Iterator[str]:
    """Yield why the tables of a topic would not be used by it alone."""
    for name in _names(template, topic):
        if (other := tables.get(name)) is not None:
            yield (
                f"{name} is the table of topic {other} already: choose another name in table.names"
            )
        for taken, other in tables.items():
            if is_below(name, taken) or is_below(taken, name):
                yield f"{name} and {taken}, the table of topic {other}, share a folder, {ORPHANS}"


def select(plans: list[TablePlan], table: str | None) -> list[TablePlan]:
    """Return the plans of the table that a command names, or of all tables if it names none."""
    chosen = [plan for plan in plans if table in (None, plan.table)]
    if not chosen:
        names = ", ".join(plan.table for plan in plans) or "none"
        raise Refusal(f"--table {table}: there is no such table; the topics' tables are {names}")
    return chosen
