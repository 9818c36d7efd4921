"""docs/compatibility.md: what each client and tool is shown to do, by which test, with what counts.

The tests are read, not run: a row is a test's name, or its docstring's first line where it has
one.  The counts are those that the suites themselves wrote into compat_tests/results.json.
"""

import ast
import json
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SUITES: Final = ROOT / "compat_tests"

TITLES: Final = {
    "kafka_python": "kafka-python 3.0",
    "confluent_kafka": "confluent-kafka 2 (librdkafka)",
    "aiokafka": "aiokafka",
    "java": "Apache's Java clients and command-line tools, 4.3.1",
    "across": "Clients among each other",
    "spark": "Spark 4.0, its Kafka source and sink",
    "pipeline": "The pipeline",
    "readme": "The README's examples",
    "durability": "Kills and restarts",
    "interchange": "Data directories of kwire in Apache Kafka, and the reverse",
    "cluster": "The metadata quorum, with Apache's nodes too",
    "kafka_python_suite": "kafka-python's own integration tests",
    "librdkafka": "librdkafka's own tests",
    "franz_go": "franz-go's own tests (kgo)",
    "go_clients": "Go: kafka-go, sarama and franz-go at pinned versions",
    "kafkajs": "Node: kafkajs and platformatic's client",
    "java_old": "Java: clients 2.0, 2.8 and 3.9, Kafka Streams, Kafka Connect",
}
HEAD: Final = """\
# Compatibility

Everything below is run against kwire and against Apache Kafka 4.3.1, so that a wrong test shows.
`scripts/test` runs the Python, Java and Spark ones; `scripts/test --all` also the Go and C suites
and everything against Apache Kafka. `compat_tests/README.md` tells how to run one.

What is served, with versions: [protocol.md](protocol.md). What is knowingly different:
[differences.md](differences.md), and in the quorum's conversations
[quorum-differences.md](quorum-differences.md). What works between nodes of both in one cluster:
[quorum-interoperation.md](quorum-interoperation.md).

## Pass counts

| suite | kwire | Apache Kafka 4.3.1 |
|---|---|---|
"""


def compatibility() -> str:
    """The whole document."""
    results = json.loads((SUITES / "results.json").read_text())
    counts = "".join(
        f"| {title} | {count(results, name, 'kwire')} | {count(results, name, 'kafka')} |\n"
        for name, title in TITLES.items()
        if name in results
    )
    return HEAD + counts + "".join(section(name, title) for name, title in TITLES.items())


def count(results: dict[str, dict[str, dict[str, int]]], suite: str, broker: str) -> str:
    found = results[suite].get(broker)
    return f"{found['passed']} of {found['of']}" if found else "-"


def section(name: str, title: str) -> str:
    """What a folder's tests show."""
    rows = []
    for path in sorted((SUITES / name).glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.name.startswith("test_"):
                rows.append(f"| {shown(node)} | `{name}/{path.name}::{node.name}` |\n")
    findings = SUITES / name / "FINDINGS.md"
    text = f"\n## {title}\n\n"
    if rows:
        text += "| what | test |\n|---|---|\n" + "".join(rows)
    if findings.exists():
        text += f"\nWhat is left out and why: [FINDINGS.md](../compat_tests/{name}/FINDINGS.md)\n"
    return text if rows or findings.exists() else ""


def shown(test: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    doc = ast.get_docstring(test)
    if doc is not None:
        return doc.partition("\n")[0].rstrip(".").replace("|", "\\|")
    return test.name.removeprefix("test_").replace("_", " ")
