"""Old Java clients, Kafka Streams and Kafka Connect: part of ``scripts/test --all``.

    python -m compat_tests.java_old.run --broker kwire|kafka|HOST:PORT

A JDK and Maven are needed. A name in tests.txt has a client's version, ``streams`` or ``connect``,
and the scenario. In addition to the scenarios, the list names every operation of the clients'
interfaces that no scenario calls.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.listing import find_uncalled
from compat_tests.harness.programs import need
from compat_tests.harness.suite import AUTHORIZING, Suite, Variant, main
from compat_tests.java_old import connect
from compat_tests.java_old.jars import classpath, jars, java

FOLDER = Path(__file__).resolve().parent
SECONDS = 600
STREAMS = ["org.apache.kafka:kafka-streams:4.3.1"]


VERSIONS = {
    "2.0.1": ("OldClients",),
    "2.8.2": ("OldClients", "Admin28"),
    "3.9.1": ("OldClients", "Admin28", "Admin39"),
}
"""The programs that each version of the clients runs, by what its interfaces have."""
CLIENTS = "org.apache.kafka.clients"
LOCAL = {
    "AdminClient",
    "close",
    "metrics",
    "wait",
    "notify",
    "notifyAll",
    "equals",
    "hashCode",
    "toString",
}


def upstream() -> list[str]:
    """Return the scenarios of each client, Streams and Connect, and the uncalled operations."""
    names = [*connect.NAMES, *(f"streams/{name}" for name in _scenarios("Streams"))]
    for version, programs in VERSIONS.items():
        names += [f"{version}/{name}" for each in programs for name in _scenarios(each)]
        sources = {version: [FOLDER / "src" / f"{each}.java" for each in programs]}
        names += find_uncalled(_operations(version), sources)
    return names


def _scenarios(program: str) -> list[str]:
    source = (FOLDER / "src" / f"{program}.java").read_text()
    return re.findall(r'scenarios\.put\("([^"]+)"', source)


def client(version: str) -> Path:
    """Return the folder of the jars of the clients of ``version``."""
    return jars(version, [f"org.apache.kafka:kafka-clients:{version}"])


def _operations(version: str) -> list[str]:
    """Return the operations in the interfaces of the clients of ``version``."""
    admin = "AdminClient" if version.startswith("2.0") else "Admin"
    interfaces = {
        "Admin": f"{CLIENTS}.admin.{admin}",
        "Producer": f"{CLIENTS}.producer.Producer",
        "Consumer": f"{CLIENTS}.consumer.Consumer",
    }
    operations: dict[str, None] = {}
    for short, name in interfaces.items():
        (jar,) = client(version).glob("kafka-clients-*.jar")
        command = [need("javap", "a JDK"), "-public", "-cp", str(jar), name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for method in re.findall(r"^ +public (?!static).*?(\w+)\(", text, re.MULTILINE):
            if method not in LOCAL:
                operations[f"{version}/{short}.{method}"] = None
    return list(operations)


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    scenarios_by_family: dict[str, list[str]] = defaultdict(list)
    for name in names:
        family, _, scenario = name.partition("/")
        scenarios_by_family[family].append(scenario)
    passed: dict[str, bool] = {}
    for family, scenarios in scenarios_by_family.items():
        if family == "connect":
            passed.update(connect.scenarios(address, names))
        elif family == "streams":
            path = classpath(jars("streams-4.3.1", STREAMS), "Report", "Streams")
            passed.update(program(path, "Streams", address, *scenarios))
        else:
            for each in VERSIONS[family]:
                own = [name for name in _scenarios(each) if name in scenarios]
                if own:
                    path = classpath(client(family), "Report", each)
                    passed.update(program(path, each, family, address, *own))
    return passed


def program(path: str, name: str, *arguments: str) -> dict[str, bool]:
    """Run one program of ``src``; return whether each scenario has passed."""
    with tempfile.TemporaryDirectory() as scratch:
        command = java(path, name, *arguments)
        command[1:1] = [f"-Djava.io.tmpdir={scratch}"]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    print(result.stdout + result.stderr)
    lines = re.findall(r"^(PASS|FAIL) ([^\s:]+)", result.stdout, re.MULTILINE)
    return {name: outcome == "PASS" for outcome, name in lines}


WITH_ACLS = ("2.0.1/acls", "2.8.2/acls", "3.9.1/acls")
SUITE = Suite("java_old", FOLDER, run, upstream, variants=[Variant(AUTHORIZING, lambda: WITH_ACLS)])

if __name__ == "__main__":
    sys.exit(main(SUITE))
