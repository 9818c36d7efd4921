"""Processes of the application ``Totals`` and the exact result that they must have."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import attrs

from compat_tests.confluent_kafka.clients import consumer, deliver, poll, producer
from compat_tests.harness.wait import eventually
from compat_tests.java_old.jars import classpath, jars, java

VERSION = "4.3.1"
SOURCES = Path(__file__).resolve().parent / "src"
WORDS = 12
SECONDS = 360
"""The time for all results; an application that was killed leaves a transaction open for 20 s."""


@attrs.define
class Input:
    """The records written so far, and the totals that follow from them."""

    address: str
    topic: str
    partition_count: int
    written: int = 0
    sums: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))

    def write(self, count: int) -> None:
        """Write records to all partitions in turn, each once."""
        client = producer(self.address, enable_idempotence=True, linger_ms=5)
        messages = []
        for number in range(self.written, self.written + count):
            word = f"word-{number * 7 % WORDS}"
            values = self.sums[word]
            last = int(values[-1].partition(":")[2]) if values else 0
            values.append(f"{len(values) + 1}:{last + number}")
            partition = number % self.partition_count
            value = f"{word} {number}".encode()
            messages.append({"topic": self.topic, "partition": partition, "value": value})
        deliver(client, messages)
        self.written += count


@attrs.define
class Instance:
    """One process of the application with its own state directory."""

    address: str
    application: str
    topics: tuple[str, str]
    directory: Path
    replicas: int = 1
    settings: tuple[str, ...] = ()
    """Settings of Kafka Streams, ``key=value``, in place of the program's own."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        libraries = jars(f"streams-{VERSION}", [f"org.apache.kafka:kafka-streams:{VERSION}"])
        path = classpath(libraries, "Totals", folder=SOURCES)
        arguments = [self.address, self.application, *self.topics]
        arguments += [str(self.directory / "state"), str(self.replicas), *self.settings]
        with (self.directory / "application.log").open("ab") as log:
            self.process = subprocess.Popen(
                java(path, "Totals", *arguments), stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """End the process at once; it commits nothing and leaves its transaction open."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """Remove the local state: the next start restores it from the changelog."""
        shutil.rmtree(self.directory / "state", ignore_errors=True)

    def tail(self) -> str:
        log = self.directory / "application.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""


@attrs.define
class Output:
    """A read_committed reader of all results, in order by word."""

    address: str
    topic: str
    group: str
    values: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))

    def wait_count(self, count: int, instances: list[Instance]) -> None:
        """Read from the start until there are at least ``count`` results."""

        def read_on() -> bool:
            for message in poll(reader, 0.5, 2000):
                self.values[message.key().decode()].append(message.value().decode())
            return sum(map(len, self.values.values())) >= count

        def progress() -> str:
            tails = "\n".join(instance.tail() for instance in instances)
            return f"{count} results; {self.sizes()}; {tails}"

        self.values.clear()
        with consumer(self.address, self.group, isolation_level="read_committed") as reader:
            reader.subscribe([self.topic])
            eventually(read_on, progress, SECONDS)
            for _ in range(4):
                read_on()  # A result that is there twice would come after the last one.

    def sizes(self) -> dict[str, int]:
        return {word: len(values) for word, values in sorted(self.values.items())}
