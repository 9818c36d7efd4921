"""Apache Kafka's own integration tests of its clients and tools: part of ``scripts/test --all``.

    python -m compat_tests.apache_tests.run --broker kwire|kafka

A JDK and Maven are needed. The tests come compiled, in the jars of the release. Against kwire, one
class of Kafka's test kit is replaced by one of the same name in ``src``, which asks nodes.py for
nodes; against Kafka nothing is. A name in tests.txt is a class and a method.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat_tests.harness.broker import ROOT
from compat_tests.harness.kafka_home import make_kafka_home
from compat_tests.harness.suite import Suite, main
from compat_tests.java_old.jars import classpath, jars, need

FOLDER: Final = Path(__file__).resolve().parent
VERSION: Final = "4.3.1"
KAFKA: Final = (
    "kafka-clients:{}:test",
    "kafka-server-common:{}:test",
    "kafka-group-coordinator:{}:test",
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
)
CLASSES: Final = (
    "org.apache.kafka.clients.TransactionsExpirationTest",
    "org.apache.kafka.clients.admin.AdminFenceProducersTest",
    "org.apache.kafka.clients.admin.DescribeProducersWithBrokerIdTest",
    "org.apache.kafka.clients.consumer.PlaintextConsumerCommitTest",
    "org.apache.kafka.clients.producer.ProducerFailureHandlingTest",
    "org.apache.kafka.clients.producer.ProducerIntegrationTest",
    "org.apache.kafka.tools.DeleteRecordsCommandTest",
    "org.apache.kafka.tools.LogDirsCommandTest",
)
BY_NAME: Final = {name.rpartition(".")[2]: name for name in CLASSES}
SECONDS: Final = 3600


def upstream() -> list[str]:
    """Return every test of the classes."""
    return re.findall(r"^TEST (\S+)", _execute("kwire", "list", *CLASSES), re.MULTILINE)


def run(kind: str, names: Sequence[str]) -> Mapping[str, bool]:
    """Run tests with nodes of a kind, each class in a JVM of its own."""
    passed: dict[str, bool] = {}
    for simple, full in BY_NAME.items():
        methods = [
            f"{full}#{each.partition('/')[2]}" for each in names if each.startswith(f"{simple}/")
        ]
        if methods:
            output = _execute(kind, "run", *methods)
            print(output, flush=True)
            lines = re.findall(r"^(PASS|FAIL) (\S+)", output, re.MULTILINE)
            passed.update({name: outcome == "PASS" for outcome, name in lines})
    return passed


def _execute(kind: str, *arguments: str) -> str:
    """Return the output of the program that lists or runs tests."""
    coordinates = [f"org.apache.kafka:{each.format(VERSION)}" for each in KAFKA]
    libraries = jars(f"apache-tests-{VERSION}", [*coordinates, *LIBRARIES], with_dependencies=False)
    kafka = f"{make_kafka_home() / 'libs'}/*"
    path = [classpath(libraries, "RunTests", folder=FOLDER / "src", beside=kafka), kafka]
    if kind == "kwire":
        own = "org/apache/kafka/common/test"
        sources = (f"{own}/Nodes", f"{own}/junit/RaftClusterInvocationContext")
        path.insert(0, classpath(libraries, *sources, folder=FOLDER / "src", beside=kafka))
    options = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-XX:+EnableDynamicAgentLoading", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    nodes = f"-Dnodes={sys.executable} -m compat_tests.apache_tests.nodes"
    with tempfile.TemporaryDirectory() as scratch:
        command = [need("java", "a JDK, 17 or newer"), *options, nodes]
        command += [f"-Djava.io.tmpdir={scratch}", "-cp", os.pathsep.join(path), "RunTests"]
        result = subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if result.returncode:
        raise RuntimeError(f"the tests ended with {result.returncode}:\n{result.stdout[-4000:]}")
    return result.stdout


@contextmanager
def no_nodes(
    kind: str, settings: Mapping[str, str], node_count: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the kind in place of an address: each test starts its own nodes."""
    yield kind, lambda: ""


SUITE: Final = Suite("apache_tests", FOLDER, run, upstream, start=no_nodes)

if __name__ == "__main__":
    sys.exit(main(SUITE))
