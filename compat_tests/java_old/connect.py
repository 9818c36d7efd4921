"""Kafka Connect in its distributed mode: from a file to a topic to a file, with restarts.

The worker keeps its configuration, positions and states in three compacted topics, is a member of
a group with a protocol of its own, and is controlled through its REST interface.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually
from compat_tests.java_old.jars import jars, java
from kwire.cluster.ports import free_ports

VERSION = "4.3.1"
COORDINATES = [
    f"org.apache.kafka:{artifact}:{VERSION}" for artifact in ("connect-runtime", "connect-file")
]
STORES = ("config", "offset", "status")


class Worker:
    """One Connect worker and its REST interface."""

    def __init__(self, address: str, folder: Path, **more: str) -> None:
        (self.port,) = free_ports(1)
        self.folder = folder
        name = f"connect-{uuid.uuid4().hex[:8]}"
        settings = {
            "bootstrap.servers": address,
            "group.id": name,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **{f"{store}.storage.topic": f"{name}-{store}" for store in STORES},
            **{f"{store}.storage.replication.factor": "1" for store in STORES},
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
        try:
            eventually(lambda: self.ask("GET", "/connectors", default=None) is not None, "REST")
            yield
            process.terminate()
            process.wait(60)
        finally:
            process.kill()
            process.wait()

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
        whole = in_turn(address, exactly_once_source_support="enabled")
        passed["connect/exactly-once"] = all(whole.values())
    if set(NAMES[:2]) & set(names):
        passed.update(in_turn(address))
    return passed


def in_turn(address: str, **settings: str) -> dict[str, bool]:
    """Run both parts; the second one continues with the state of the first."""
    passed: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        worker = Worker(address, folder, **settings)
        source, sink = folder / "in.txt", folder / "out.txt"
        topic = f"lines-{uuid.uuid4().hex[:8]}"
        configs = {
            "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": topic},
            "sink": {"connector.class": "FileStreamSink", "file": str(sink), "topics": topic},
        }
        steps: dict[str, Callable[[], None]] = {
            "connect/file-to-file": lambda: first_run(worker, configs, source, sink),
            "connect/restart": lambda: second_run(worker, source, sink),
        }
        for name, step in steps.items():
            try:
                step()
                passed[name] = True
            except Exception as error:  # Any exception is this scenario's result.
                log = folder / "worker.log"
                tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                print(f"FAIL {name}: {error!r}\n{tail}")
                passed[name] = False
    return passed


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines()) if path.exists() else []


def first_run(worker: Worker, configs: dict[str, Any], source: Path, sink: Path) -> None:
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
