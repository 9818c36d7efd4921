"""Clients that are logged in over TLS, and write and read without pause until they are stopped.

Clients in Python run in a thread (:data:`IN_PYTHON`), those in Go and Node in a program
(go_clients/loads.go, kafkajs/loads.cjs), which reads an attempt from standard input and has the
path of a file as its argument. When the file exists, or when a client reports an error, it ends and
prints the :class:`Report` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import aiokafka
import aiokafka.errors
import attrs
import kafka
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from compat_tests.aiokafka import clients as aio
from compat_tests.go_clients.run import binary
from compat_tests.harness.wait import DEADLINE_SECONDS, eventually
from compat_tests.kafka_python import clients as kafka_python
from compat_tests.kafkajs.run import need, with_scripts
from compat_tests.security.encrypted import AioKafka, KafkaPython, Login, for_librdkafka
from compat_tests.security.programs import Attempt

ESTABLISHED: Final = "01"
PAUSE_S: Final = 0.01


@attrs.define
class Report:
    """The observations of a client."""

    acknowledged: list[str] = attrs.field(factory=list)
    received: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)

    @property
    def losses(self) -> list[str]:
        """The acknowledged records that did not come back, or came back more than once."""
        counts = {value: self.received.count(value) for value in self.acknowledged}
        return [value for value, count in counts.items() if count != 1]

    def is_complete(self) -> bool:
        return len(self.received) >= len(self.acknowledged)


Stop = Callable[[], bool]


class InPython(Protocol):
    """A client library in Python."""

    def run(self, attempt: Attempt, login: Login, stop: Stop, report: Report) -> None:
        """Write and read until ``stop``, then read what is left."""


class LoadOfLibrdkafka:
    """confluent-kafka."""

    def run(self, attempt: Attempt, login: Login, stop: Stop, report: Report) -> None:
        def on_error(error: KafkaError) -> None:
            if error.code() == KafkaError._AUTHENTICATION:
                report.errors.append(error.str())

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                report.acknowledged.append((message.value() or b"").decode())
            else:
                report.errors.append(error.str())

        own = {"bootstrap.servers": attempt["address"], "error_cb": on_error}
        settings = {**own, **for_librdkafka(login)}
        producer = Producer({**settings, "linger.ms": 0, "enable.idempotence": True})
        consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition(attempt["topic"], 0, 0)])

        def read() -> None:
            for message in consumer.consume(1000, PAUSE_S):
                if message.error() is None:
                    report.received.append((message.value() or b"").decode())

        try:
            for value in number_values(attempt, stop, report):
                producer.produce(attempt["topic"], value, on_delivery=on_delivery)
                producer.poll(PAUSE_S)
                read()
            if not report.errors:
                producer.flush(DEADLINE_SECONDS)
                read_rest(read, report)
        finally:
            consumer.close()


class LoadOfKafkaPython:
    """kafka-python."""

    def run(self, attempt: Attempt, login: Login, stop: Stop, report: Report) -> None:
        settings = KafkaPython().settings(login)
        limits = {
            "request_timeout_ms": 10_000,
            "delivery_timeout_ms": 20_000,
            "max_block_ms": 20_000,
        }
        address, topic = attempt["address"], attempt["topic"]

        def send(value: str) -> None:
            future = producer.send(topic, value.encode())
            future.add_callback(lambda _: report.acknowledged.append(value))
            future.add_errback(lambda error: report.errors.append(repr(error)))

        def read() -> None:
            for record in kafka_python.poll(consumer, 20):
                report.received.append(record.value.decode())

        with (
            kafka_python.producer(address, **settings, **limits) as producer,
            kafka_python.consumer(address, **settings) as consumer,
        ):
            consumer.assign([kafka.TopicPartition(topic, 0)])
            for value in number_values(attempt, stop, report):
                send(value)
                read()
            if not report.errors:
                producer.flush(DEADLINE_SECONDS)
                read_rest(read, report)


class LoadOfAioKafka:
    """aiokafka."""

    def run(self, attempt: Attempt, login: Login, stop: Stop, report: Report) -> None:
        settings = AioKafka().settings(login)
        address, topic = attempt["address"], attempt["topic"]

        async def main() -> None:
            async with (
                aio.producer(address, **settings, request_timeout_ms=20_000) as producer,
                aio.consumer(address, **settings) as consumer,
            ):
                consumer.assign([aiokafka.TopicPartition(topic, 0)])

                async def read() -> None:
                    for batch in (await consumer.getmany(timeout_ms=20)).values():
                        report.received.extend(record.value.decode() for record in batch)

                try:
                    for value in number_values(attempt, stop, report):
                        await producer.send_and_wait(topic, value.encode())
                        report.acknowledged.append(value)
                        await read()
                except aiokafka.errors.KafkaError as error:
                    report.errors.append(f"{type(error).__name__}: {error}")
                    return
                deadline = time.monotonic() + DEADLINE_SECONDS
                while not report.is_complete() and time.monotonic() < deadline:
                    await read()

        # After a rejected login, the stop() of aiokafka may end with CancelledError.
        with suppress(asyncio.CancelledError):
            aio.run(main())


IN_PYTHON: Final[Mapping[str, InPython]] = {
    "librdkafka": LoadOfLibrdkafka(),
    "kafka-python": LoadOfKafkaPython(),
    "aiokafka": LoadOfAioKafka(),
}
IN_PROGRAMS: Final = ("franz-go", "sarama", "kafka-go", "kafkajs")


def number_values(attempt: Attempt, stop: Stop, report: Report) -> Iterator[str]:
    """Yield the values to write, until ``stop`` or an error."""
    number = 0
    while not stop() and not report.errors:
        yield f"{attempt['name']}-{number}"
        number += 1


def read_rest(read: Callable[[], None], report: Report) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not report.is_complete() and time.monotonic() < deadline:
        read()


@attrs.define
class Load:
    """A running client."""

    attempt: Attempt
    login: Login
    stop_file: Path
    open_address: str
    """A listener without logins, at which the topic's progress is seen."""
    report: Report = attrs.field(factory=Report)
    _thread: threading.Thread = attrs.field(factory=threading.Thread)
    _progress: Any = None

    @property
    def client(self) -> str:
        return self.attempt["client"]

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def end_offset(self) -> int:
        """The number of records in the topic."""
        partition = TopicPartition(self.attempt["topic"], 0)
        end: int = self._progress.get_watermark_offsets(partition, timeout=30)[1]
        return end

    def start(self) -> None:
        settings = {"bootstrap.servers": self.open_address, "group.id": "none"}
        self._progress = Consumer(settings)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_more(self) -> None:
        """Wait until ten more records have been written."""
        start = self.end_offset
        eventually(
            lambda: self.end_offset >= start + 10 or self.has_ended,
            lambda: f"more records: {self.report.errors}",
        )
        assert not self.has_ended, self.report.errors

    def stop(self) -> Report:
        self.stop_file.touch()
        self._thread.join()
        return self.report

    def close(self) -> None:
        self.stop()
        self._progress.close()

    def connections(self) -> set[int]:
        """Return the ports of the connections to the listener of the login."""
        port = int(self.attempt["address"].rpartition(":")[2])
        return connections_to(port)

    def _run(self) -> None:
        try:
            if self.client in IN_PYTHON:
                client = IN_PYTHON[self.client]
                client.run(self.attempt, self.login, self.stop_file.exists, self.report)
            else:
                self.report = run_program(self.attempt, self.stop_file)
        except Exception as error:
            self.report.errors.append(f"{type(error).__name__}: {error}")


def run_program(attempt: Attempt, stop_file: Path) -> Report:
    command, folder = [str(binary()), "load", str(stop_file)], None
    if attempt["client"] == "kafkajs":
        command, folder = [need("node"), "loads.cjs", str(stop_file)], with_scripts()
    done = subprocess.run(
        command,
        input=json.dumps(attempt),
        cwd=folder,
        env={**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return Report(errors=[done.stderr])
    return Report(**json.loads(done.stdout))


def connections_to(port: int) -> set[int]:
    """Return the local ports of this machine's established connections to a port."""
    local_ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields: Sequence[str] = line.split()
        if fields[3] == ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == port:
            local_ports.add(int(fields[1].rpartition(":")[2], 16))
    return local_ports


@contextmanager
def loading(attempt: Attempt, login: Login, open_address: str, stop_file: Path) -> Iterator[Load]:
    """Run a client, and stop it at the end of the block."""
    load = Load(attempt, login, stop_file, open_address)
    load.start()
    try:
        load.wait_for_more()
        yield load
    finally:
        load.close()
