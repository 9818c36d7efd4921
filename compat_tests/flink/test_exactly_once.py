"""Flink's exactly-once sink, whose transactions are prepared by one process and ended by the next.

Each checkpoint flushes a transaction and stores its producer's id and epoch. The process that
follows a killed one commits it with that id and epoch, without InitProducerId, and then aborts what
the killed process wrote after its last checkpoint.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from confluent_kafka import TopicPartition

from compat_tests.confluent_kafka.clients import (
    consumer,
    create,
    deliver,
    is_end,
    producer,
    value_of,
)
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from compat_tests.java_old.jars import classpath, jars, java

pytestmark = [pytest.mark.single, pytest.mark.long]
VERSION = "2.2.0"
COORDINATES = [
    f"org.apache.flink:flink-streaming-java:{VERSION}",
    f"org.apache.flink:flink-clients:{VERSION}",
    f"org.apache.flink:flink-connector-base:{VERSION}",
    "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
]
SOURCES = Path(__file__).resolve().parent / "src"
STRATEGIES = ["INCREMENTING", "POOLING"]
"""A new transactional id for each checkpoint, or ids that are used again."""
RECORDS = 500
SECONDS = 180
"""The time for a process to start and copy: its JVM compiles for a long time on a busy machine."""


@attrs.define
class Job:
    """A process that copies a topic, with its checkpoints."""

    arguments: tuple[str, ...]
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = classpath(jars(f"flink-{VERSION}", COORDINATES), "Copies", folder=SOURCES)
        with (self.folder / "job.log").open("ab") as log:
            command = java(path, "Copies", *self.arguments)
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """End the process at once; it leaves transactions open and prepared."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def tail(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")[-3000:]


@pytest.fixture(params=STRATEGIES)
def job(
    request: pytest.FixtureRequest,
    own_broker: Broker,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Job]:
    source, target = unique("from"), unique("to")
    for topic in (source, target):
        create(own_broker.address, topic)
    checkpoints = tmp_path / "checkpoints"
    arguments = (own_broker.address, source, target, str(checkpoints), request.param)
    job = Job(arguments, tmp_path)
    yield job
    job.kill()


def values(address: str, topic: str, isolation: str) -> list[bytes]:
    """Return all records of the topic's partition; those of open transactions if uncommitted."""
    records: list[bytes] = []
    settings = {"isolation_level": isolation, "enable_partition_eof": True}
    with consumer(address, "no-group", **settings) as client:
        client.assign([TopicPartition(topic, 0, 0)])
        while True:
            for message in client.consume(500, 0.2):
                if is_end(message):
                    return records
                assert message.error() is None, message.error()
                records.append(value_of(message))


def test_each_record_is_copied_once_although_the_job_is_killed(
    own_broker: Broker, job: Job
) -> None:
    address, source, target, *_ = job.arguments
    client = producer(address)
    written: list[bytes] = []

    def write() -> None:
        more = [f"{len(written) + number}".encode() for number in range(RECORDS)]
        deliver(client, [{"topic": source, "partition": 0, "value": value} for value in more])
        written.extend(more)

    def count(isolation: str) -> int:
        return len(values(address, target, isolation))

    write()
    job.start()
    eventually(lambda: count("read_committed") == RECORDS, job.tail, SECONDS)
    for broker_restarts in (False, True):
        before = count("read_uncommitted")
        write()
        # The records are in the topic before the checkpoint that commits them.
        eventually(lambda: count("read_uncommitted") > before, job.tail, SECONDS)  # noqa: B023
        job.kill()
        if broker_restarts:
            own_broker.restart()
        job.start()
        eventually(lambda: count("read_committed") >= len(written), job.tail, SECONDS)
    write()
    eventually(lambda: count("read_committed") >= len(written), job.tail, SECONDS)
    assert values(address, target, "read_committed") == written
