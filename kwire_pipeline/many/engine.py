"""Spark, the brokers and the store for many tables: one client, a session for each thread.

Rules of this file: one request covers all topics; each thread has its own session, because some
statements take their settings from the session.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from queue import SimpleQueue

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import secrets_of
from kwire_pipeline.config.template import Template
from kwire_pipeline.engine import source
from kwire_pipeline.engine.cluster import Cluster
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.offline import Place, place_of
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.query import Control, run_pipeline
from kwire_pipeline.engine.reporting.figures import Tally
from kwire_pipeline.engine.session import set_warehouse
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Failure
from kwire_pipeline.many.notes import (
    PROBLEMS,
    TOPICS,
    dump_problems,
    first_topics,
    read_problems,
    written_topics,
)
from kwire_pipeline.many.state import Look, Problem


class SparkEngine:
    """The engine of one process."""

    def __init__(self, spark: SparkSession, template: Template) -> None:
        self._spark = spark
        self._common = template.common
        self._source = template.common.source
        self._folder = Folder(spark, template.common.checkpoint)
        self._cluster = Cluster(spark, source.client(self._source), self._source.isolation)
        self._sessions: SimpleQueue[SparkSession] = SimpleQueue()
        for _ in range(template.common.limits.parallel_tables):
            session = spark.newSession()
            set_warehouse(session, template.common)
            self._sessions.put(session)

    def close(self) -> None:
        self._cluster.close()

    def written_topics(self) -> set[str]:
        return written_topics(self._folder)

    def first_topics(self, started: Collection[str]) -> Collection[str] | None:
        return first_topics(self._folder, started)

    def note_first(self, topics: Collection[str]) -> None:
        self._folder.write(TOPICS, json.dumps(sorted(topics), indent=1) + "\n")

    def topics(self, started: Collection[str]) -> list[str]:
        """Return the topics of the file, including deleted ones that a run must not skip."""
        if self._source.pattern is None:
            return list(self._source.topics)
        former = started if self._source.fail_on_data_loss else ()
        return self._cluster.matching(self._source.pattern, former)

    def look(self, topics: Collection[str]) -> Look:
        existing = self._cluster.existing(topics)
        return Look(existing, self._cluster.known_ends(existing.values()))

    def place(self, pipeline: Pipeline) -> Place | None:
        return place_of(self._spark, pipeline)

    def run(self, pipeline: Pipeline, intent: Intent, control: Control, given_up: Ranges) -> Tally:
        session = self._sessions.get()
        try:
            return run_pipeline(session, pipeline, intent, control, given_up, self._cluster)
        finally:
            self._sessions.put(session)

    def problems(self) -> Mapping[str, tuple[str, Problem]]:
        """Return the table and problem of each topic that was failing when the last run ended."""
        return read_problems(self._folder)

    def note_problems(self, problems: Mapping[str, tuple[str, Problem]]) -> bool:
        """Store the problems, without secrets; return whether this succeeded."""
        with suppress(Py4JError, Failure):
            self._folder.write(PROBLEMS, dump_problems(problems, secrets_of(self._common)))
            return True
        return False
