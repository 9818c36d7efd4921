"""A topic, a pipeline over it, and the question whether each record is in one of its tables."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from pyspark.sql import DataFrame, Row, SparkSession

from compat_tests.harness.broker import Broker
from kwire_pipeline.commands.verify import prove
from kwire_pipeline.config.model import DeadLetters, Limits, Pipeline, Source, Table, ValueFormat
from kwire_pipeline.config.values import Partition
from kwire_pipeline.engine.by_key.key_proof import KeyProof
from kwire_pipeline.engine.faults import NO_FAULTS, Faults, Place
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.losses import NOTHING
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.proof import Proof
from kwire_pipeline.engine.query import Control, run_pipeline
from kwire_pipeline.engine.reporting.figures import Batch, Tally
from kwire_pipeline.engine.shape_and_tables import destinations_of

SCHEMA = "id BIGINT NOT NULL, name STRING, at TIMESTAMP"


CRASHES = (
    Place.AFTER_TABLE,
    pytest.param(Place.BEFORE_TABLE, marks=pytest.mark.long),
    pytest.param(Place.AFTER_DEAD_LETTERS, marks=pytest.mark.long),
)
"""The places at which a test ends a run; after the table, both tables differ."""

TASKS: list[int] = []
"""The number of tasks of each batch that `note_tasks` has seen."""


def note_tasks(frame: DataFrame) -> DataFrame:
    """Note the number of tasks, as a user's transform."""
    TASKS.append(frame.rdd.getNumPartitions())
    return frame


def halve_and_double(frame: DataFrame) -> DataFrame:
    """Leave out the rows with odd ids and repeat the others, as a user's transform."""
    return frame.where("id % 2 = 0").unionAll(frame.where("id % 2 = 0"))


class Crash(Exception):
    """The end of a run at a place."""


@attrs.frozen
class CrashAt:
    """Faults that end a run at one place, as far as files and tables can tell."""

    place: Place

    def reach(self, place: Place) -> None:
        if place is self.place:
            raise Crash(place.value)


@attrs.define
class Scene:
    """One pipeline on one broker, run in the session of the tests."""

    spark: SparkSession
    broker: Broker
    topic: str
    folder: Path
    pipeline: Pipeline = attrs.field(init=False)
    batches: list[Batch] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        name = f"t{uuid.uuid4().hex[:8]}"
        self.pipeline = Pipeline(
            name="orders",
            source=Source(bootstrap=self.broker.address, topics=(self.topic,)),
            value=ValueFormat(schema=SCHEMA),
            table=Table(name=f"shop.{name}", partition_by=(Partition.parse("days(at)"),)),
            dead_letters=DeadLetters(table=f"shop.{name}_dead"),
            checkpoint=str(self.folder / "checkpoint"),
        )

    def create_topic(self, partitions: int = 2) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        admin.create_topics([NewTopic(self.topic, partitions, 1)])
        admin.close()

    def delete_topic(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        admin.delete_topics([self.topic])
        admin.close()

    def delete_records(self, offsets: dict[int, int]) -> None:
        """Delete the records before an offset of each partition, as retention does."""
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        admin.delete_records({TopicPartition(self.topic, p): o for p, o in offsets.items()})
        admin.close()

    def produce(self, numbers: Sequence[int], *, partition: int | None = None) -> None:
        """Produce records, one in ten of which is no JSON; all are acknowledged."""
        producer = KafkaProducer(bootstrap_servers=self.broker.address, acks="all")
        start_ms = int(time.time() * 1000)
        futures = []
        for number in numbers:
            value = json.dumps(
                {
                    "id": number,
                    "name": f"n{number}",
                    "at": f"2026-11-{1 + number % 3:02d}T00:00:00Z",
                }
            ).encode()
            if number % 10 == 9:
                value = value[:-1]
            chosen = number % 2 if partition is None else partition
            futures.append(
                producer.send(
                    self.topic, value, key=b"\xff", partition=chosen, timestamp_ms=start_ms
                )
            )
        for future in futures:
            future.get(60)
        producer.close()

    def run(
        self,
        intent: Intent = Intent.CONTINUE,
        *,
        crash: Place | None = None,
        faults: Faults = NO_FAULTS,
        given_up: Ranges = NOTHING,
    ) -> Tally:
        faults = faults if crash is None else CrashAt(crash)
        control = Control(report=self.batches.append, faults=faults)
        return run_pipeline(self.spark, self.pipeline, intent, control, given_up)

    def with_limit(self, offsets: int) -> None:
        limits = Limits(max_offsets_per_trigger=offsets)
        self.pipeline = attrs.evolve(self.pipeline, limits=limits)

    def other_pipeline(self) -> Pipeline:
        """Return a pipeline over the same topic and into the same dead letters."""
        table = attrs.evolve(self.pipeline.table, name=f"{self.pipeline.table.name}_others")
        checkpoint = str(self.folder / "others")
        return attrs.evolve(self.pipeline, name="others", table=table, checkpoint=checkpoint)

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)

    def rows(self) -> list[Row]:
        return destinations_of(self.spark, self.pipeline).table.read().collect()

    def letters(self) -> list[Row]:
        letters = destinations_of(self.spark, self.pipeline).dead_letters
        assert letters is not None
        return letters.read().collect()

    def verify(self) -> Proof | KeyProof:
        return prove(self.spark, self.pipeline)

    def check_each_once(self, numbers: Sequence[int]) -> None:
        """Assert that the tables have each record once, each in its own table."""
        ids = sorted(row.id for row in self.rows())
        assert ids == [number for number in numbers if number % 10 != 9]
        dead = sorted(json.loads(bytes(row.value) + b"}")["id"] for row in self.letters())
        assert dead == [number for number in numbers if number % 10 == 9]

    def snapshots(self) -> int:
        return self.spark.table(f"kwire.{self.pipeline.table.name}.snapshots").count()
