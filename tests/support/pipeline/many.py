"""A file for many tables, and an engine without Spark that writes them."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import attrs

from kwire_pipeline.config.document import read_document
from kwire_pipeline.config.load import Flag
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Template
from kwire_pipeline.engine.cluster import Topic
from kwire_pipeline.engine.identity import Identity, Intent
from kwire_pipeline.engine.offline import Place
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.query import Control
from kwire_pipeline.engine.reporting.figures import Tally
from kwire_pipeline.many.state import Look, Problem

T = TypeVar("T")
MANY = """\
name: raw
source: {bootstrap: 127.0.0.1:9092, pattern: "shop[.].*"}
value: {format: string}
table: {format: iceberg, warehouse: lake, name: "raw.{topic}"}
dead_letters: {table: "raw.{topic}_dead"}
checkpoint: lake/checkpoint
"""


def template(text: str = MANY, *flags: Flag) -> Template:
    return Template.of(read_document("raw.yaml", text, {}), flags, {})


def place(topic: str, position: int, *, is_half_done: bool = False) -> Place:
    """Return the place of a checkpoint in a topic with one partition."""
    identity = Identity(
        name=f"raw.{topic}",
        pipeline_id="p",
        cluster_id="c",
        topics={topic: f"id of {topic}"},
        table=f"raw.{topic}",
        table_id="t",
        dead_letters=None,
        schema="",
        start={topic: {0: 0}},
    )
    return Place(
        identity=identity,
        position={topic: {0: position}},
        batch_id=0,
        is_half_done=is_half_done,
    )


class Inline(Executor):
    """An executor that does each task at once."""

    def submit(self, task: Callable[..., T], /, *args: Any, **more: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(task(*args, **more))
        except Exception as error:  # noqa: BLE001 a task may raise anything
            future.set_exception(error)
        return future


@attrs.define
class FakeEngine:
    """Topics with ends, and the runs of tables; each run reads its topic to the end."""

    ends: dict[str, int] = attrs.field(factory=dict)
    positions: dict[str, int] = attrs.field(factory=dict)
    errors: dict[str, Exception] = attrs.field(factory=dict)
    """The error that the run of a topic raises."""
    downs: list[Exception] = attrs.field(factory=list)
    """The errors of looks at the brokers; without any the brokers answer."""
    deleted: set[str] = attrs.field(factory=set)
    """The topics that were deleted."""
    runs: list[tuple[str, Intent]] = attrs.field(factory=list)
    pipelines: dict[str, Pipeline] = attrs.field(factory=dict)
    given_up: dict[str, Ranges] = attrs.field(factory=dict)
    look_count: int = 0
    first: Collection[str] | None = None
    is_store_away: bool = False
    noted: dict[str, tuple[str, Problem]] = attrs.field(factory=dict)

    def written_topics(self) -> set[str]:
        return set(self.positions)

    def first_topics(self, started: Collection[str]) -> Collection[str] | None:
        return self.first if self.first is not None else started or None

    def note_first(self, topics: Collection[str]) -> None:
        self.first = list(topics)

    def topics(self, started: Collection[str]) -> list[str]:
        for error in self.downs:
            raise error
        return sorted(self.ends)

    def look(self, topics: Collection[str]) -> Look:
        self.look_count += 1
        names = set(topics) - self.deleted
        described = {name: Topic(name, f"id of {name}", (0,)) for name in names}
        return Look(described, {name: {0: self.ends[name]} for name in names})

    def place(self, pipeline: Pipeline) -> Place | None:
        (topic,) = pipeline.source.topics
        return place(topic, self.positions[topic]) if topic in self.positions else None

    def run(self, pipeline: Pipeline, intent: Intent, control: Control, given_up: Ranges) -> Tally:
        (topic,) = pipeline.source.topics
        assert len(self.runs) < 1000, "a table is run without end"
        self.runs.append((topic, intent))
        self.pipelines[topic] = pipeline
        self.given_up[topic] = given_up
        if topic in self.errors:
            raise self.errors[topic]
        row_count = self.ends[topic] - self.positions.get(topic, 0)
        self.positions[topic] = self.ends[topic]
        return Tally(batches=1, rows=row_count)

    def problems(self) -> Mapping[str, tuple[str, Problem]]:
        return dict(self.noted)

    def note_problems(self, problems: Mapping[str, tuple[str, Problem]]) -> bool:
        if self.is_store_away:
            return False
        self.noted = dict(problems)
        return True
