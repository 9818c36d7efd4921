"""Old Java clients, Kafka Streams and Kafka Connect: part of ``scripts/test --all``.

    python -m compat_tests.java_old.run --broker kwire|kafka|HOST:PORT

A JDK and Maven are needed. The names in allow.txt say what runs: a client's version, ``streams`` or
``connect``, and the scenario.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.suite import Suite, main
from compat_tests.java_old import connect
from compat_tests.java_old.jars import classpath, jars, java

FOLDER = Path(__file__).resolve().parent
SECONDS = 600
STREAMS = ["org.apache.kafka:kafka-streams:4.3.1"]


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    wanted: dict[str, list[str]] = defaultdict(list)
    for name in names:
        family, _, scenario = name.partition("/")
        wanted[family].append(scenario)
    passed: dict[str, bool] = {}
    for family, scenarios in wanted.items():
        if family == "connect":
            passed.update(connect.scenarios(address))
        elif family == "streams":
            path = classpath(jars("streams-4.3.1", STREAMS), "Report", "Streams")
            passed.update(program(path, "Streams", address, *scenarios))
        else:
            libraries = jars(family, [f"org.apache.kafka:kafka-clients:{family}"])
            path = classpath(libraries, "Report", "OldClients")
            passed.update(program(path, "OldClients", family, address, *scenarios))
    return passed


def program(path: str, name: str, *arguments: str) -> dict[str, bool]:
    """Run one program of ``src``; what it said of each scenario."""
    with tempfile.TemporaryDirectory() as scratch:
        command = java(path, name, *arguments)
        command[1:1] = [f"-Djava.io.tmpdir={scratch}"]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    print(result.stdout + result.stderr)
    lines = re.findall(r"^(PASS|FAIL) ([^\s:]+)", result.stdout, re.MULTILINE)
    return {name: outcome == "PASS" for outcome, name in lines}


SUITE = Suite("java_old", FOLDER, run)

if __name__ == "__main__":
    sys.exit(main(SUITE))
