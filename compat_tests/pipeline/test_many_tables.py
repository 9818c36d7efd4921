"""Many tables from one file and one session: a topic that appears later, and one that is bad."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.scene import Crash, CrashAt
from kwire_pipeline.commands.tables import choose, on_table
from kwire_pipeline.commands.verify import verify_table
from kwire_pipeline.config.document import read_document
from kwire_pipeline.config.load import Flag
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Template
from kwire_pipeline.engine.faults import NO_FAULTS, Faults, Place
from kwire_pipeline.engine.query import Control
from kwire_pipeline.engine.reporting.figures import Batch
from kwire_pipeline.errors import EXIT_REFUSAL
from kwire_pipeline.many.engine import SparkEngine
from kwire_pipeline.many.runs import Outcome, Outside, TableRuns

FILE = """\
name: raw
source: {{bootstrap: "{broker}", pattern: "{prefix}[.]..*"}}
value: {{format: json, schema: "@{{topic}}.ddl"}}
table: {{format: iceberg, warehouse: unused, name: "{prefix}.{{topic}}"}}
dead_letters: {{table: "{prefix}.{{topic}}_dead"}}
checkpoint: {folder}/checkpoint
"""
RECORDS = 20
"""The records of a topic, of which one is no JSON."""


@attrs.define
class Lake:
    """The topics of one test, and the file of their tables."""

    spark: SparkSession
    broker: Broker
    folder: Path
    prefix: str = attrs.field(factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    batches: list[str] = attrs.field(factory=list)
    """The topic of each batch that was written."""
    warnings: list[str] = attrs.field(factory=list)

    def fill(self, *names: str, has_schema: bool = True, create: bool = True) -> None:
        """Create topics and produce records, all acknowledged."""
        topics = [f"{self.prefix}.{name}" for name in names]
        if create:
            admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
            admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
            admin.close()
        producer = KafkaProducer(bootstrap_servers=self.broker.address, acks="all")
        futures = []
        for topic in topics:
            if has_schema:
                (self.folder / f"{topic}.ddl").write_text("id BIGINT NOT NULL")
            for number in range(RECORDS):
                value = b"{" if number == RECORDS - 1 else json.dumps({"id": number}).encode()
                futures.append(producer.send(topic, value))
        for future in futures:
            future.get(60)
        producer.close()

    def template(self, *flags: Flag) -> Template:
        text = FILE.format(broker=self.broker.address, prefix=self.prefix, folder=self.folder)
        return Template.of(read_document(f"{self.folder}/raw.yaml", text, {}), flags, {})

    def run(self, *flags: Flag, until: Collection[str] = (), crash: str | None = None) -> Outcome:
        """Run the tables: until the end, or until the topics named are written."""
        template = self.template(*flags)
        end_s = time.monotonic() + 300

        def control_of(pipeline: Pipeline) -> Control:
            (topic,) = pipeline.source.topics

            def report(batch: Batch) -> None:
                self.batches.append(topic.removeprefix(f"{self.prefix}."))

            is_crashing = crash is not None and topic.endswith(f".{crash}")
            faults: Faults = CrashAt(Place.AFTER_TABLE) if is_crashing else NO_FAULTS
            return Control(report=report, faults=faults)

        def is_stopping() -> bool:
            is_done = set(until) <= set(self.batches)
            return bool(until) and (is_done or time.monotonic() >= end_s)

        engine = SparkEngine(self.spark, template)
        try:
            return TableRuns(
                template=template,
                engine=engine,
                outside=Outside(
                    control_of=control_of, warn=self.warnings.append, is_stopping=is_stopping
                ),
                executor=ThreadPoolExecutor(2),
            ).run()
        finally:
            engine.close()

    def table_of(self, name: str) -> str:
        return f"{self.prefix}.{self.prefix}_{name}"

    def ids(self, name: str) -> list[int]:
        return sorted(row.id for row in self.spark.table(f"kwire.{self.table_of(name)}").collect())

    def verify(self) -> dict[str, int]:
        """Return the exit code of `verify` for each table."""
        template = self.template()
        return {
            chosen.plan.topic.removeprefix(f"{self.prefix}."): on_table(
                self.spark, template.common, chosen, verify_table
            )
            for chosen in choose(self.spark, template, None)
        }


@pytest.fixture
def lake(spark: SparkSession, broker: Broker, tmp_path: Path) -> Lake:
    return Lake(spark, broker, tmp_path)


def test_topic_that_appears_is_written_and_a_bad_one_stops_only_itself(lake: Lake) -> None:
    """A topic lacks its schema; one fails after its rows are written; one appears while it runs."""
    lake.fill("a", "b", "c")
    lake.fill("bad", has_schema=False)
    outcome = lake.run(crash="c")
    assert sorted(lake.batches) == ["a", "b"]
    assert outcome.problems.keys() == {lake.table_of("bad"), lake.table_of("c")}
    assert "bad.ddl cannot be read" in outcome.problems[lake.table_of("bad")].text
    assert Crash.__name__ in outcome.problems[lake.table_of("c")].text
    error = str(outcome.error())
    assert error.startswith("2 of 4 tables failed: ")
    # At an interval: the failed table is finished, a topic is added meanwhile.
    lake.batches.clear()
    lake.fill("a", create=False)
    with ThreadPoolExecutor(1) as other:
        adding = other.submit(lake.fill, "late")
        outcome = lake.run(Flag("trigger", "1 second"), until=("a", "c", "late"))
        adding.result()
    assert outcome.problems.keys() == {lake.table_of("bad")}
    assert sorted(lake.batches) == ["a", "c", "late"], lake.warnings
    ids = list(range(RECORDS - 1))
    assert lake.ids("a") == sorted(ids * 2)
    assert lake.ids("b") == lake.ids("c") == lake.ids("late") == ids
    assert lake.verify() == {"a": 0, "b": 0, "bad": EXIT_REFUSAL, "c": 0, "late": 0}
    # The schema is there: the next run writes this table alone.
    lake.batches.clear()
    lake.fill("bad", create=False)
    assert lake.run().error() is None
    assert lake.batches == ["bad"]
    assert lake.verify() == dict.fromkeys(("a", "b", "bad", "c", "late"), 0)
