"""`kwire-pipeline status`: offsets, lag, the last batch, dead letters and table sizes."""

import json
from collections.abc import Mapping

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
from kwire_pipeline.config.template import Loaded
from kwire_pipeline.engine import offsets, source
from kwire_pipeline.engine.batch import by_reason
from kwire_pipeline.engine.cluster import Cluster
from kwire_pipeline.engine.offline import state_of
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.engine.query import set_session
from kwire_pipeline.errors import EXIT_REFUSAL
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
    """The reason why the last run of many tables did not write this table."""

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


def status(loaded: Loaded, *, as_json: bool = False, table: str | None = None) -> int:
    """Print the status of a pipeline, or of each table of many; nothing is written."""
    if isinstance(loaded, Pipeline):
        check_name(loaded, table)
        with session_of(loaded) as spark:
            show_status(read_status(spark, loaded), loaded, as_json=as_json)
        return 0
    code = 0
    with session_of(loaded) as spark:
        for chosen in choose(spark, loaded, table):
            code = max(code, show_chosen(spark, loaded.common, chosen, as_json=as_json))
    return code


def show_status(result: Status, pipeline: Pipeline, *, as_json: bool) -> None:
    show(pipeline, [json.dumps(attrs.asdict(result))] if as_json else result.words())


def show_chosen(spark: SparkSession, common: Pipeline, chosen: Chosen, *, as_json: bool) -> int:
    """Print the status of one of many tables; for a table never written, print its problem."""

    def act(spark: SparkSession, pipeline: Pipeline) -> int:
        result = attrs.evolve(read_status(spark, pipeline), problem=chosen.problem)
        show_status(result, pipeline, as_json=as_json)
        return 0

    plan = chosen.plan
    problem = plan.problem or chosen.problem
    if chosen.is_started and plan.pipeline is not None:
        return on_table(spark, common, chosen, act, is_quiet=as_json)
    words = "not written yet" if problem is None else f"not written: {problem}"
    text = f"{plan.table} (topic {plan.topic}): {words}"
    show(common, [json.dumps({"table": plan.table, "problem": problem}) if as_json else text])
    return 0 if problem is None else report(common, plan.table, Problem(words, EXIT_REFUSAL))


def read_status(spark: SparkSession, pipeline: Pipeline) -> Status:
    """Read the status from checkpoint, brokers and tables."""
    set_session(spark)
    state = state_of(spark, pipeline)
    cluster = Cluster(spark, source.client(pipeline.source))
    try:
        ends = cluster.ends(cluster.topics(state.identity.topics).values())
    finally:
        cluster.close()
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
