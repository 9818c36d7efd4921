"""The broker under test: kwire, Apache Kafka, or a running one at an address.

Rules: kwire and Kafka start from the same properties file, on free ports, with data in a folder of
the test run; every process that is started here is ended here. A broker at an address cannot be
killed or restarted: tests that need that fail with a message that says so.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import attrs

from compat_tests.harness.ports import new_ports

ROOT = Path(__file__).resolve().parents[2]
PLAIN_PROFILE = {
    "num.partitions": "4",
    "group.consumer.assignment.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
}
"""The settings of all brokers; members of consumer groups send heartbeats often."""
READY_SECONDS = 60
STOP_SECONDS = 60


def _load_kafka_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kafka_script", ROOT / "scripts" / "kafka.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kafka = _load_kafka_script()


class BrokerError(RuntimeError):
    """The broker under test failed to start or stop, or cannot be controlled."""


@attrs.define
class Broker:
    """One broker; ``address`` is the bootstrap address for clients."""

    kind: str
    address: str
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    prefix: tuple[str, ...] = ()
    """The beginning of its command line, such as the one that enters a volume's namespace."""
    release: str = kafka.VERSION
    """The release of Apache Kafka that runs where ``kind`` is "kafka"."""
    classpath: tuple[str, ...] = ()
    """Folders of classes that Apache Kafka loads."""
    arguments: tuple[str, ...] = ()
    """More arguments of `kwire serve`."""

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def start(self) -> None:
        if self.kind == "kafka":
            self.process = kafka.launch(self.directory, self.release, self.classpath)
        elif self.kind == "kwire":
            self.process = _launch_kwire(self.directory, self.prefix, self.arguments)
        else:
            raise BrokerError(f"a broker at an address ({self.address}) cannot be restarted")

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; the broker flushes nothing."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM and wait for the end of the controlled shutdown."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker at the end of a test; kill it if it does not stop."""
        if self.process is None or self.process.poll() is not None:
            return
        try:
            self.stop()
        except BrokerError:
            self.kill()

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            raise BrokerError(f"a broker at an address ({self.address}) cannot be stopped")
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise BrokerError(
                f"{self.kind} still runs {STOP_SECONDS} s after {number.name}"
            ) from None


def make_broker(
    kind: str,
    directory: Path,
    overrides: Mapping[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    classpath: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
) -> Broker:
    """Start a broker of ``kind`` kwire or kafka, or use the one at host:port."""
    if kind not in ("kwire", "kafka"):
        return Broker(kind="address", address=kind, directory=directory)
    ports = port, _ = new_ports(2)
    directory.mkdir(parents=True, exist_ok=True)
    settings = {**PLAIN_PROFILE, **(overrides or {})}
    properties = kafka.node_properties(directory, ports, settings)
    kafka.write_properties(directory / "server.properties", properties)
    address = f"127.0.0.1:{port}"
    broker = Broker(
        kind=kind,
        address=address,
        directory=directory,
        prefix=prefix,
        classpath=classpath,
        arguments=arguments,
    )
    broker.start()
    return broker


def _launch_kwire(
    directory: Path, prefix: tuple[str, ...] = (), arguments: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    command = [*prefix, str(ROOT / "scripts" / "kwire"), "serve", "--config", "server.properties"]
    command += arguments
    log = directory / "server.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    line = _first_line(process)
    if not line.startswith("kwire ready on "):
        process.kill()
        process.wait()
        tail = log.read_text(errors="replace")[-2000:]
        raise BrokerError(f"kwire said {line!r} instead of being ready; the end of {log}:\n{tail}")
    return process


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """Return the first line on stdout; the rest is drained so that the pipe never fills."""
    lines: list[bytes] = []
    arrived = threading.Event()
    assert process.stdout is not None
    stdout = process.stdout

    def drain() -> None:
        with stdout:
            for line in stdout:
                lines.append(line)
                arrived.set()
        arrived.set()

    threading.Thread(target=drain, daemon=True).start()
    arrived.wait(READY_SECONDS)
    return lines[0].decode().strip() if lines else ""
