"""Apache Kafka's own integration tests: part of ``scripts/test --all``.

    python -m compat_tests.apache_tests.run --broker kwire|kafka

A JDK and Maven are needed. The tests come compiled, in the jars of the release; classes.py names
the classes. Against kwire, the two classes of Kafka's test kit that start brokers are replaced by
ones of the same names in ``src``, which ask nodes.py for nodes; against Kafka nothing is. A name in
tests.txt is a class and a method; ``--only`` also takes a class.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat_tests.apache_tests.classes import BY_NAME
from compat_tests.harness.broker import ROOT
from compat_tests.harness.kafka_home import make_kafka_home
from compat_tests.harness.programs import need
from compat_tests.harness.suite import Suite, main
from compat_tests.java_old.jars import classpath, jars

FOLDER: Final = Path(__file__).resolve().parent
VERSION: Final = "4.3.1"
KAFKA: Final = (
    "kafka-clients:{}:test",
    "kafka-server-common:{}:test",
    "kafka-group-coordinator:{}:test",
    "kafka-share-coordinator:{}:test",
    "kafka-coordinator-common:{}:test",
    "kafka-transaction-coordinator:{}:test",
    "kafka-storage:{}:test",
    "kafka-metadata:{}:test",
    "kafka-raft:{}:test",
    "kafka-server:{}:test",
    "kafka-streams:{}:test",
    "kafka-streams-integration-tests:{}:test",
    "connect-runtime:{}:test",
    "kafka-streams:{}",
    "kafka-streams-test-utils:{}",
    "connect-file:{}",
    "kafka-clients-integration-tests:{}:test",
    "kafka-test-common-internal-api:{}",
    "kafka-test-common-runtime:{}:test",
    "kafka-test-common-runtime:{}",
    "kafka-tools:{}:test",
    "kafka_2.13:{}:test",
)
LIBRARIES: Final = (
    "org.junit.platform:junit-platform-launcher:1.13.1",
    "org.junit.platform:junit-platform-commons:1.13.1",
    "org.junit.platform:junit-platform-engine:1.13.1",
    "org.junit.jupiter:junit-jupiter-api:5.13.1",
    "org.junit.jupiter:junit-jupiter-engine:5.13.1",
    "org.junit.jupiter:junit-jupiter-params:5.13.1",
    "org.opentest4j:opentest4j:1.3.0",
    "org.apiguardian:apiguardian-api:1.1.2",
    "org.mockito:mockito-core:5.14.2",
    "org.mockito:mockito-junit-jupiter:5.14.2",
    "net.bytebuddy:byte-buddy:1.15.4",
    "net.bytebuddy:byte-buddy-agent:1.15.4",
    "org.objenesis:objenesis:3.3",
    "org.hamcrest:hamcrest:3.0",
    "junit:junit:4.13.2",
    "org.rocksdb:rocksdbjni:10.1.3",
)
SECONDS: Final = 7200
"""The most that the tests of one package may take: on a busy machine, ten times what they need."""


def upstream() -> list[str]:
    """Return every test of the classes."""
    lines = _execute("kwire", "list", *BY_NAME.values())
    return re.findall(r"^TEST (\S+)", "".join(lines), re.MULTILINE)


def run(kind: str, names: Sequence[str]) -> Mapping[str, bool]:
    """Run tests, or all tests of classes: each package in a JVM of its own."""
    packages: dict[str, list[str]] = {}
    for name in names:
        simple, _, method = name.partition("/")
        full = BY_NAME[simple]
        selected = packages.setdefault(full.removesuffix(f".{simple}"), [])
        selected.append(f"{full}#{method}" if method else full)
    passed: dict[str, bool] = {}
    for selected in packages.values():
        for line in _execute(kind, "run", *selected):
            print(line, end="", flush=True)
            if outcome := re.match(r"(PASS|FAIL) (\S+)", line):
                passed[outcome[2]] = outcome[1] == "PASS"
    whole = [name for name in names if "/" not in name]
    for simple in whole:
        passed[simple] = all(ok for name, ok in passed.items() if name.startswith(f"{simple}/"))
    return passed


def _execute(kind: str, *arguments: str) -> Iterator[str]:
    """Yield the lines of the program that lists or runs tests."""
    options = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-XX:+EnableDynamicAgentLoading", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    nodes = f"-Dnodes={sys.executable} -m compat_tests.apache_tests.nodes"
    with tempfile.TemporaryDirectory() as scratch:
        command = [need("java", "a JDK, 17 or newer"), *options, nodes]
        command += [f"-Djava.io.tmpdir={scratch}", "-cp", _class_path(kind), "RunTests"]
        process = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        try:
            yield from process.stdout
            if process.wait():
                raise RuntimeError(f"the tests ended with {process.returncode}")
        finally:
            limit.cancel()
            process.kill()
            process.wait()


def _class_path(kind: str) -> str:
    coordinates = [*(f"org.apache.kafka:{each.format(VERSION)}" for each in KAFKA), *LIBRARIES]
    digest = hashlib.sha256("\n".join(coordinates).encode()).hexdigest()[:8]
    libraries = jars(f"apache-tests-{VERSION}-{digest}", coordinates, with_dependencies=False)
    kafka = f"{make_kafka_home() / 'libs'}/*"
    folder = FOLDER / "src"
    path = [classpath(libraries, "RunTests", folder=folder, beside=kafka), kafka]
    if kind == "kwire":
        own = sorted(str(file.relative_to(folder))[:-5] for file in folder.glob("org/**/*.java"))
        path.insert(0, classpath(libraries, *own, folder=folder, beside=kafka))
    return os.pathsep.join(path)


@contextmanager
def no_nodes(
    kind: str, settings: Mapping[str, str], node_count: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the kind in place of an address: each test starts its own nodes."""
    yield kind, lambda: ""


SUITE: Final = Suite("apache_tests", FOLDER, run, upstream, start=no_nodes)

if __name__ == "__main__":
    sys.exit(main(SUITE))
