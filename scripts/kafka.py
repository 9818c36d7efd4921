#!/usr/bin/env python3
"""Apache Kafka 4.3.1 for tests beside kwire: fetch it from Maven, start and stop it, run its tools.

    kafka.py fetch                            get the jars if they are missing; print their folder
    kafka.py start DIR PORT [key=value ...]   start a node in the background; controller: any port
    kafka.py stop DIR | kill DIR              SIGTERM and wait, or SIGKILL
    kafka.py restart DIR                      start a node again on its existing data
    kafka.py tool CLASS ARGS...               run a tool: org.apache.kafka.tools.TopicCommand

Rules: the standard library only, so that it runs before any environment exists; importable (the
compatibility tests use the functions below); a missing program is reported in one line that says
what to install. The jars are in ${KWIRE_CACHE:-~/.cache/kwire}/kafka-4.3.1. KAFKA_HEAP_OPTS sets a
node's heap, KAFKA_JVM_PERFORMANCE_OPTS its garbage collector and compiler, as in Kafka's scripts;
the defaults here are for nodes that start quickly and share a machine. The classes of a first node
are archived beside the jars, so that later ones need not parse them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

VERSION = "4.3.1"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
ARTIFACTS = ("kafka_2.13", "kafka-tools", "kafka-shell")
LOGGING = ("org.slf4j", "slf4j-simple", "1.7.36")
START_SECONDS = 120
ARCHIVE = "classes.jsa"
"""The file with the classes of a node, beside the folder of the jars."""
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class KafkaUnavailableError(RuntimeError):
    """A program that the script needs is missing here; the text names what to install."""


def cache_dir(version: str = VERSION) -> Path:
    base = os.environ.get("KWIRE_CACHE") or str(Path.home() / ".cache" / "kwire")
    return Path(base) / f"kafka-{version}"


def _need(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise KafkaUnavailableError(f"`{program}` is missing: install {package}")
    return path


def _pom(version: str) -> str:
    artifacts = [("org.apache.kafka", name, version) for name in ARTIFACTS]
    dependencies = "\n".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{release}</version></dependency>"
        for group, name, release in [*artifacts, LOGGING]
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>kwire.compat</groupId><artifactId>apache-kafka</artifactId>\n"
        "<version>1</version><packaging>jar</packaging>\n"
        f"<dependencies>\n{dependencies}\n</dependencies></project>\n"
    )


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache's folder: only one process at a time fills it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(version: str = VERSION) -> Path:
    """Return the folder of a release's jars; fetch them from Maven first if it lacks any."""
    folder = cache_dir(version)
    if not _is_complete(folder, version):
        with hold_lock(folder):
            if not _is_complete(folder, version):
                _fill(folder, version)
    return folder / "libs"


def _is_complete(folder: Path, version: str) -> bool:
    return (folder / "ok").exists() and (folder / "pom.xml").read_text() == _pom(version)


def _fill(folder: Path, version: str) -> None:
    maven = _need("mvn", "maven (Debian: apt-get install maven)")
    (folder / "ok").unlink(missing_ok=True)
    (folder / "pom.xml").write_text(_pom(version))
    goals = ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"]
    goals += ["-DincludeScope=runtime"]
    result = subprocess.run(
        [maven, "-q", "-B", *goals], cwd=folder, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        tail = (result.stdout + result.stderr).strip().splitlines()[:1]
        raise KafkaUnavailableError(f"mvn could not fetch Apache Kafka {version}: {' '.join(tail)}")
    (folder / "ok").touch()


def java_command(
    *arguments: str, classpath: Sequence[str] = (), version: str = VERSION
) -> list[str]:
    """Return a `java` command line with a release's jars (and ``classpath``) on its class path."""
    java = _need("java", "a Java runtime, 17 or newer (Debian: openjdk-17-jdk-headless)")
    joined = os.pathsep.join([*classpath, f"{fetch(version)}/*"])
    level = os.environ.get("KAFKA_LOG_LEVEL", "warn")
    logging = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}"
    return [java, logging, "-Djava.awt.headless=true", "-cp", joined, *arguments]


def node_properties(
    directory: Path, ports: tuple[int, int], overrides: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of a single node; Apache Kafka and kwire both accept them.

    ``ports``: the clients' and the controller's.
    """
    port, controller = ports
    node = overrides.get("node.id", "1")
    properties = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": f"{node}@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "default.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return {**properties, **overrides}


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def wait_for_port(port: int, process: subprocess.Popen[bytes] | None, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    raise RuntimeError(f"Apache Kafka did not open port {port}; the end of {log}:\n{tail}")


def _listener_port(properties: Path) -> int:
    for line in properties.read_text().splitlines():
        if line.startswith("listeners="):
            return int(line.split(",")[0].rsplit(":", 1)[1])
    raise RuntimeError(f"{properties} has no listeners")


def performance_options() -> list[str]:
    """Return the JVM's options for its garbage collector, compiler and shared classes."""
    chosen = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS")
    return [*QUICK_START.split(), *_sharing()] if chosen is None else chosen.split()


def _sharing() -> list[str]:
    """Return the options to map the classes of Kafka's jars instead of parsing them again.

    A JVM of another version or with other jars ignores the archive, here without a warning.
    """
    archive = cache_dir() / ARCHIVE
    options = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", f"-XX:SharedArchiveFile={archive}"]
    return options if archive.exists() else []


def share_classes() -> None:
    """Archive the classes that a node loads, once: later nodes start with two thirds of the CPU."""
    folder = fetch().parent
    if (folder / ARCHIVE).exists() or "KAFKA_JVM_PERFORMANCE_OPTS" in os.environ:
        return
    with hold_lock(folder), tempfile.TemporaryDirectory() as scratch:
        if (folder / ARCHIVE).exists():
            return
        directory = Path(scratch)
        properties = node_properties(directory, _free_ports(), {})
        write_properties(directory / "server.properties", properties)
        written = folder / "classes.new"
        process = _launch(directory, [*QUICK_START.split(), f"-XX:ArchiveClassesAtExit={written}"])
        process.terminate()
        process.wait(START_SECONDS)
        written.rename(folder / ARCHIVE)


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("", 0)) as first, socket.create_server(("", 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]


def launch(
    directory: Path, version: str = VERSION, classpath: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the node whose ``server.properties`` is in ``directory``; format its data if empty.

    ``classpath``: folders of classes that the properties name.
    """
    share_classes()
    return _launch(directory, performance_options(), version, classpath)


def _launch(
    directory: Path, options: Sequence[str], version: str = VERSION, classpath: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    properties, log = directory / "server.properties", directory / "server.log"
    if not (directory / "data" / "meta.properties").exists():
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(properties)]
        command = java_command(
            *performance_options(), "kafka.tools.StorageTool", *arguments, version=version
        )
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"format failed: {result.stdout}{result.stderr}")
    heap = os.environ.get("KAFKA_HEAP_OPTS", "-Xms256m -Xmx256m").split()
    command = java_command("kafka.Kafka", str(properties), classpath=classpath, version=version)
    command[1:1] = [*heap, *options]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    (directory / "pid").write_text(str(process.pid))
    try:
        wait_for_port(_listener_port(properties), process, log)
    except RuntimeError:
        process.kill()
        process.wait()
        raise
    return process


def start(directory: Path, port: int, overrides: Mapping[str, str]) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    properties = node_properties(directory.resolve(), (port, port + 1), overrides)
    write_properties(directory / "server.properties", properties)
    return launch(directory.resolve())


def _signal(directory: Path, number: signal.Signals) -> None:
    pid = int((directory / "pid").read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        while True:
            time.sleep(0.05)
            os.kill(pid, 0)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["fetch"]:
            print(fetch())
        case ["start", directory, port, *settings]:
            pairs = dict(setting.split("=", 1) for setting in settings)
            print(start(Path(directory), int(port), pairs).pid)
        case ["restart", directory]:
            print(launch(Path(directory).resolve()).pid)
        case ["stop", directory]:
            _signal(Path(directory), signal.SIGTERM)
        case ["kill", directory]:
            _signal(Path(directory), signal.SIGKILL)
        case ["tool", name, *rest]:
            return subprocess.run(java_command(name, *rest), check=False).returncode
        case _:
            print(__doc__, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KafkaUnavailableError as error:
        print(f"kafka.py: {error}", file=sys.stderr)
        sys.exit(1)
