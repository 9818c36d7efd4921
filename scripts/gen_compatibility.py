"""The generator of docs/compatibility.md: the tested functions of each client and tool, and counts.

The tests are read, not run: a row is a test's docstring's first line, or its name if it has no
docstring. A docstring that begins with a source, such as a KIP, follows the name in brackets. The
counts are those that the suites have written to compat_tests/results.json.
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.harness import listing  # noqa: E402

SUITES: Final = ROOT / "compat_tests"

SEVERAL: Final = "_3_nodes"
"""The end of the name of a suite's counts with several nodes."""
REPEATED: Final = {
    "aiokafka": "aiokafka",
    "java": "Apache's Java clients and command-line tools, 4.3.1",
    "kafka_python_suite": "kafka-python's own integration tests",
    "franz_go": "franz-go's own tests (kgo)",
    "go_clients": "Go: kafka-go, sarama and franz-go",
    "java_old": "Java: clients 2.0, 2.8 and 3.9, Kafka Streams, Kafka Connect",
}
"""The titles of the suites that also run with `--nodes 3`."""
TITLES: Final = {
    "kafka_python": "kafka-python 3.0",
    "confluent_kafka": "confluent-kafka 2 (librdkafka)",
    "aiokafka": "aiokafka",
    "java": "Apache's Java clients and command-line tools, 4.3.1",
    "share": "Share groups: Apache's Java client and tools, and single requests",
    "telemetry": "Clients that push their metrics",
    "across": "Clients among each other",
    "streams": "Kafka Streams, Connect and MirrorMaker 2 4.3.1",
    "flink": "Flink 2.2, its exactly-once sink",
    "spark": "Spark 4.0, its Kafka source and sink",
    "pipeline": "The pipeline",
    "security": "Logins, users and access tokens, also over TLS",
    "tls": "TLS",
    "readme": "The examples of the README, of test-brokers.md, and in `examples/`",
    "durability": "Kills and restarts",
    "interchange": "Data directories of kwire in Apache Kafka, and the reverse",
    "cluster": "The metadata quorum, with Apache's nodes too",
    "kafka_python_suite": "kafka-python's own integration tests",
    "librdkafka": "librdkafka's own tests",
    "librdkafka_consumer": "librdkafka's own tests of groups, with the consumer protocol",
    "franz_go": "franz-go's own tests (kgo)",
    "kfake": "franz-go's tests of its simulated cluster (kfake), with real brokers",
    "kafka_go": "kafka-go's own tests",
    "sarama": "sarama's own functional tests, on five brokers",
    "rskafka": "rskafka's own integration tests, on three brokers",
    "go_clients": "Go: kafka-go, sarama and franz-go at pinned versions",
    "kafkajs": "Node: kafkajs and platformatic's client",
    "java_old": "Java: clients 2.0, 2.8 and 3.9, Kafka Streams, Kafka Connect",
    "apache_tests": "Apache's own integration tests: clients, tools, requests, Streams, 4.3.1",
    **{f"{name}{SEVERAL}": f"{title}, on three nodes" for name, title in REPEATED.items()},
}
HEAD: Final = """\
# Compatibility

Everything below is run against kwire and against Apache Kafka 4.3.1, so that a wrong test shows.
`scripts/test` runs the Python, Java and Spark ones; `scripts/test --all` also the Go, C and
Rust suites and everything against Apache Kafka. `compat_tests/README.md` says how to run one.

What is served, with versions: [protocol.md](protocol.md). What is knowingly different:
[differences.md](differences.md), and in the quorum's conversations
[quorum-differences.md](quorum-differences.md). What works between nodes of both in one cluster:
[quorum-interoperation.md](quorum-interoperation.md).

## Counts

Other people's suites are counted whole: a test that is not run is left out for a reason, which
the suite's list gives; the table of each suite counts by reason. A dash means a suite that was
not run since its list changed.

| suite | kwire: passed | failed | left out | Apache Kafka 4.3.1: passed | failed | left out |
|---|---|---|---|---|---|---|
"""
ALSO_TRIED: Final = """\

## Also tried

These ran once, by hand, and are not part of `scripts/test`:

- confluent-kafka-python's own integration tests (2.15.0, with the client 2.16.1). Admin, consumer,
  producer, serializers: on kwire, 30 passed and 1 was skipped; 1 needs an authorizer, and 1 a
  cluster that the suite starts itself. Share consumers (three of six modules): 53 passed, 3 were
  skipped, 1 failed. On Apache Kafka that one fails too: it expects that the limit of locked records
  divides a batch.
- aiokafka's own integration tests (0.14.0), with TLS, PLAIN, SCRAM and ACLs, at a broker that runs
  already in place of the one in their container. On kwire and on Apache Kafka: 225 of 228 passed, 1
  was skipped as too old, and the 2 of Kerberos were left out. No package contains these tests.
- Apache's own tests of its share consumer (ShareConsumerTest of 4.3.1), with nodes of kwire in
  place of brokers in their JVM: 96 of 100 passed. The others look for the broker's metrics there.
- kafkajs's own tests (2.2.4), on three nodes with its listeners for plain text, TLS and logins:
  1,228 of 1,243 passed, 8 were skipped. Two of the other 15 talk to no broker; the other 13 fail on
  Apache Kafka too: five join groups with a rebalance timeout of 0, and the others expect answers of
  older releases or read at once what they have changed.
- Apache's Java clients, command-line tools and Kafka Streams 4.4.0 in place of 4.3.1: all tests of
  `java/`, `streams/`, `share/`, `telemetry/` and `authorization/` passed, and those of `security/`
  that ran, all but 19, except with controllers of Apache Kafka 4.4: kwire does not join them at
  their `metadata.version`, and says so.
- The tests of watermill's Kafka module (3.0.6): 54 passed, 10 skipped themselves, and one failed,
  which expects that new topics have one partition; the last ones were not run.
"""
BROKERS: Final = ("kwire", "kafka")
SOURCE: Final = re.compile(r"(also )?(KIP-|RFC |invariants? )\d", re.IGNORECASE)
"""The beginning of a docstring that names a source before it says anything, if it does."""
Counts = dict[str, dict[str, dict[str, Any]]]
"""The counts by suite and broker."""


def compatibility() -> str:
    """Return the whole document."""
    results = json.loads((SUITES / "results.json").read_text())
    counts = "".join(
        f"| {title} | {count(results, name, 'kwire')} | {count(results, name, 'kafka')} |\n"
        for name, title in TITLES.items()
        if name in results
    )
    sections = (section(name, title, results) for name, title in TITLES.items())
    return HEAD + counts + "".join(sections) + ALSO_TRIED


def count(results: Counts, suite: str, broker: str) -> str:
    """Return one broker's cells: passed, failed, left out; dashes without current counts."""
    counts = counts_of(results, suite, broker)
    if counts is None:
        return "- | - | -"
    return f"{counts['passed']} | {counts['failed']} | {sum(counts['excluded'].values())}"


def counts_of(results: Counts, suite: str, broker: str) -> dict[str, Any] | None:
    """Return the counts of the last run; None if there is none, or the list changed since."""
    counts = results.get(suite, {}).get(broker)
    path = SUITES / suite.removesuffix(SEVERAL) / "tests.txt"
    if counts is None or not path.exists():
        return counts
    listed = listing.read(path)
    if suite.endswith(SEVERAL):
        listed = [listing.for_several(entry) for entry in listed]
    total = counts["passed"] + counts["failed"] + sum(counts["excluded"].values())
    is_current = counts["excluded"] == listing.tally(listed, broker, {})["excluded"]
    return counts if is_current and total == len(listed) else None


def left_out(name: str, results: Counts) -> str:
    """Return the table of a suite's reasons, with the tests each leaves out per broker."""
    brokers = [counts_of(results, name, kind) for kind in BROKERS]
    reasons = sorted({reason for counts in brokers if counts for reason in counts["excluded"]})
    rows = []
    for reason in reasons:
        cells = [str(counts["excluded"].get(reason, 0)) if counts else "-" for counts in brokers]
        rows.append(f"| {reason} | {' | '.join(cells)} |\n")
    table = "| left out because | kwire | Apache Kafka |\n|---|---|---|\n" + "".join(rows)
    return f"{table}\nEvery test, with its reason: [tests.txt](../compat_tests/{name}/tests.txt)\n"


def section(name: str, title: str, results: Counts) -> str:
    """Return the section of one folder's tests; empty if it has none."""
    rows = []
    for path in sorted((SUITES / name).glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("test_"):
                rows.append(f"| {first_line(node)} | `{name}/{path.name}::{node.name}` |\n")
    is_foreign = (SUITES / name / "tests.txt").exists()
    findings = SUITES / name / "FINDINGS.md"
    text = f"\n## {title}\n\n"
    if rows:
        text += "| what | test |\n|---|---|\n" + "".join(rows)
    if is_foreign:
        text += ("\n" if rows else "") + left_out(name, results)
    if findings.exists():
        text += f"\nFindings: [FINDINGS.md](../compat_tests/{name}/FINDINGS.md)\n"
    return text if rows or is_foreign else ""


def first_line(test: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a test's docstring's first line, its name, or both."""
    name = test.name.removeprefix("test_").replace("_", " ")
    doc = (ast.get_docstring(test) or "").partition("\n")[0].rstrip(".").replace("|", "\\|")
    if SOURCE.match(doc):
        return f"{name} ({doc[0].lower() if doc[1].islower() else doc[0]}{doc[1:]})"
    return doc or name
