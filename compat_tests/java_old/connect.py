"""Kafka Connect in its distributed mode: from a file to a topic to a file, with restarts.

The worker keeps its configuration, positions and states in three compacted topics, is a member of
a group with a protocol of its own, and is controlled through its REST interface.

Exactly once, it writes a source's records and position in one transaction; it is killed twice in
the middle of one, and the topic has each line of the file once and in order.  The worker that
follows waits until the group has removed the killed one, so this scenario sets a short session.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from compat_tests.confluent_kafka.clients import consumer, create, poll
from compat_tests.harness.broker import kafka
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from compat_tests.java_old.jars import jars, java

VERSION = "4.3.1"
COORDINATES = [
    f"org.apache.kafka:{artifact}:{VERSION}" for artifact in ("connect-runtime", "connect-file")
]
STORES = ("config", "offset", "status")
START_SECONDS = 180
"""Time for a worker to start: its JVM compiles for a long time on a busy machine."""
EXACTLY_ONCE = {
    "exactly_once_source_support": "enabled",
    "session_timeout_ms": "6000",
    "scheduled_rebalance_max_delay_ms": "0",
}
TRANSACTIONAL_SOURCE = {
    "exactly.once.support": "required",
    "transaction.boundary": "interval",
    "transaction.boundary.interval.ms": "1000",
    "tasks.max": "1",
}
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LINES_A_ROUND = 500
KILLS = 2


class Worker:
    """One Connect worker and its REST interface."""

    process: subprocess.Popen[bytes]

    def __init__(self, address: str, folder: Path, **more: str) -> None:
        (self.port,) = new_ports(1)
        self.folder = folder
        self.name = name = f"connect-{uuid.uuid4().hex[:8]}"
        settings = {
            "bootstrap.servers": address,
            "group.id": name,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **{f"{store}.storage.topic": f"{name}-{store}" for store in STORES},
            **{f"{store}.storage.replication.factor": "-1" for store in STORES},
            "offset.flush.interval.ms": "200",
            "heartbeat.interval.ms": "500",
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.discovery": "service_load",
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        self.properties = folder / "worker.properties"
        kafka.write_properties(self.properties, settings)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        libraries = jars(f"connect-{VERSION}", COORDINATES)
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = java(f"{libraries}/*", main, str(self.properties))
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self.process = process
        try:
            eventually(self.answers, "REST", START_SECONDS)
            yield
            process.terminate()
            process.wait(60)
        finally:
            process.kill()
            process.wait()

    def answers(self) -> bool:
        """Whether the worker is a member of its group and answers."""
        assert self.process.poll() is None, "the worker has ended"
        return self.ask("GET", "/connectors", default=None) is not None

    def ask(self, method: str, path: str, body: Any = None, **otherwise: Any) -> Any:
        """Send a REST request and return the answer; with ``default``, that instead of an error."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                text = response.read()
        except OSError as error:
            if "default" in otherwise:
                return otherwise["default"]
            if isinstance(error, urllib.error.HTTPError):
                raise AssertionError(f"{method} {path}: {error.read().decode()}") from None
            raise
        return json.loads(text) if text else {}

    def state(self, name: str) -> tuple[str, ...]:
        """Return the states of a connector and its tasks."""
        status = self.ask("GET", f"/connectors/{name}/status", default=None)
        if status is None:
            return ()
        return (status["connector"]["state"], *(task["state"] for task in status["tasks"]))


NAMES = ("connect/file-to-file", "connect/restart", "connect/exactly-once")


def scenarios(address: str, names: Collection[str]) -> dict[str, bool]:
    """Run the named scenarios; return whether each has passed."""
    passed: dict[str, bool] = {}
    if "connect/exactly-once" in names:
        with worker_at(address, **EXACTLY_ONCE) as worker:
            steps = {"connect/exactly-once": lambda: killed_source(worker, address)}
            passed.update(in_turn(worker, steps))
    if set(NAMES[:2]) & set(names):
        with worker_at(address) as worker:
            source, sink = worker.folder / "in.txt", worker.folder / "out.txt"
            steps = {
                "connect/file-to-file": lambda: first_run(worker, source, sink),
                "connect/restart": lambda: second_run(worker, source, sink),
            }
            passed.update(in_turn(worker, steps))
    return passed


@contextlib.contextmanager
def worker_at(address: str, **settings: str) -> Iterator[Worker]:
    with tempfile.TemporaryDirectory() as scratch:
        yield Worker(address, Path(scratch), **settings)


def in_turn(worker: Worker, steps: Mapping[str, Callable[[], None]]) -> dict[str, bool]:
    """Run the steps; each one continues with the worker's state after the one before."""
    passed: dict[str, bool] = {}
    for name, step in steps.items():
        try:
            step()
            passed[name] = True
        except Exception as error:  # Any exception is this scenario's result.
            log = worker.folder / "worker.log"
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            print(f"FAIL {name}: {error!r}\n{tail}")
            passed[name] = False
    return passed


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines()) if path.exists() else []


def first_run(worker: Worker, source: Path, sink: Path) -> None:
    topic = f"lines-{uuid.uuid4().hex[:8]}"
    configs = {
        "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": topic},
        "sink": {"connector.class": "FileStreamSink", "file": str(sink), "topics": topic},
    }
    with worker.running():
        source.write_text("one\ntwo\n")
        for name, config in configs.items():
            worker.ask("PUT", f"/connectors/{name}/config", {**config, "tasks.max": "2"})
        eventually(lambda: worker.state("sink") == ("RUNNING", "RUNNING", "RUNNING"), "running")
        eventually(lambda: lines(sink) == ["one", "two"], "the first lines")
        worker.ask("PUT", "/connectors/sink/pause")
        eventually(lambda: worker.state("sink") == ("PAUSED", "PAUSED", "PAUSED"), "paused")
        append(source, "three\n")
        worker.ask("PUT", "/connectors/sink/resume")
        eventually(lambda: lines(sink) == ["one", "three", "two"], "the third line")


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def second_run(worker: Worker, source: Path, sink: Path) -> None:
    """Check that a restarted worker keeps its connectors and positions; then restart the sink."""
    with worker.running():
        append(source, "four\n")
        eventually(lambda: "four" in lines(sink), "the fourth line")
        assert lines(sink) == ["four", "one", "three", "two"], "read once"
        worker.ask("PUT", "/connectors/sink/stop")
        eventually(lambda: worker.state("sink") == ("STOPPED",), "stopped")
        eventually(
            lambda: worker.ask("DELETE", "/connectors/sink/offsets", default=None) is not None,
            "the sink's positions are deleted",
        )
        sink.unlink()
        worker.ask("PUT", "/connectors/sink/resume")
        eventually(lambda: lines(sink) == ["four", "one", "three", "two"], "all once more")
        for name in ("source", "sink"):
            worker.ask("DELETE", f"/connectors/{name}")
        eventually(lambda: worker.ask("GET", "/connectors") == [], "no connectors")


def killed_source(worker: Worker, address: str) -> None:
    """Kill the worker in the middle of transactions; each line is committed once, in order."""
    source, topic = worker.folder / "in.txt", f"lines-{uuid.uuid4().hex[:8]}"
    create(address, topic, replicas=-1)
    source.touch()
    config = {"connector.class": "FileStreamSource", "file": str(source), "topic": topic}
    written: list[str] = []
    end = 0
    for number in range(KILLS + 1):
        with worker.running():
            if number == 0:
                worker.ask("PUT", "/connectors/source/config", {**config, **TRANSACTIONAL_SOURCE})
            more = [f"line {len(written) + index}" for index in range(LINES_A_ROUND)]
            append(source, "".join(f"{line}\n" for line in more))
            written += more
            if number < KILLS:
                end = kill_in_transaction(worker, address, topic, end)
            else:
                eventually(lambda: written[-1] in values(address, topic, COMMITTED), "all lines")  # noqa: B023
    committed = values(address, topic, COMMITTED)
    assert committed == written, f"{len(committed)} lines of {len(written)}: {committed}"
    everything = values(address, topic, UNCOMMITTED)
    assert len(everything) > len(written), "the records of killed transactions are in the log"


def kill_in_transaction(worker: Worker, address: str, topic: str, last_end: int) -> int:
    """Kill the worker in a transaction that began behind ``last_end``; return the log end."""

    def is_open() -> bool:
        return max(end_offset(address, topic, COMMITTED), last_end) < high_watermark()

    def high_watermark() -> int:
        return end_offset(address, topic, UNCOMMITTED)

    while True:
        eventually(is_open, "an open transaction")
        worker.process.send_signal(signal.SIGSTOP)
        if is_open():  # It can no longer end.
            worker.process.kill()
            worker.process.wait()
            return high_watermark()
        worker.process.send_signal(signal.SIGCONT)


def values(address: str, topic: str, isolation: str) -> list[str]:
    """Return the values of a topic with one partition, up to its end."""
    end = end_offset(address, topic, isolation)
    values: list[str] = []
    with consumer(address, "none", isolation_level=isolation) as client:
        client.assign([TopicPartition(topic, 0, 0)])

        def is_at_end() -> bool:
            values.extend(message.value().decode() for message in poll(client))
            (place,) = client.position([TopicPartition(topic, 0)])
            return end == 0 or place.offset >= end

        eventually(is_at_end, f"offset {end} of {topic}")
    return values


def end_offset(address: str, topic: str, isolation: str) -> int:
    """Return the last stable offset of the topic's partition, or the high watermark."""
    with consumer(address, "none", isolation_level=isolation) as client:
        _, end = client.get_watermark_offsets(TopicPartition(topic, 0), 30)
    return int(end)
