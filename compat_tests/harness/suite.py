"""The runner of foreign suites: fetch, run, compare with the list, report.

``tests.txt`` names every test of the suite (compat_tests/harness/listing.py). Rules: an expected
test that did not run is a failure; a test is retried only if the list calls it flaky. The counts
are written to ``compat_tests/results.json``, from which docs/compatibility.md takes its numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs

from compat_tests.cluster.nodes import Cluster
from compat_tests.harness import listing
from compat_tests.harness.broker import PLAIN_PROFILE, ROOT, kafka, make_broker
from compat_tests.harness.ports import new_ports

FLAKY_RETRIES = 3
RESULTS = ROOT / "compat_tests" / "results.json"


SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Arguments for unpacking archives; Python before 3.11.4 has no filters."""


def cache(*parts: str) -> Path:
    base = os.environ.get("KWIRE_CACHE") or str(Path.home() / ".cache" / "kwire")
    folder = Path(base, "suites", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


Brokers = AbstractContextManager[tuple[str, Callable[[], str]]]
"""Running brokers: their address, and a reader of the end of their logs."""


@contextmanager
def running(
    kind: str, settings: Mapping[str, str], node_count: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Run one broker or a cluster; yield its address and a reader of the end of its logs."""
    if node_count > 1 and kind in ("kwire", "kafka"):
        with running_cluster(kind, settings, node_count) as cluster:
            yield cluster.bootstrap, cluster.tails
        return
    with tempfile.TemporaryDirectory() as scratch:
        own = {name: value.format(id=1) for name, value in settings.items()}
        broker = make_broker(kind, Path(scratch), own)
        log = broker.directory / "server.log"
        try:
            yield (
                broker.address,
                lambda: log.read_text(errors="replace")[-4000:] if log.exists() else "",
            )
        finally:
            broker.close()


@contextmanager
def running_cluster(kind: str, settings: Mapping[str, str], node_count: int) -> Iterator[Cluster]:
    """Run a cluster whose nodes have these settings beside the usual ones."""
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(Path(scratch))
        for node_id in range(1, node_count + 1):
            cluster.add(node_id, kind)
        for node in cluster.nodes.values():
            (login_port,) = new_ports(1)
            ports = {
                "port": node.port,
                "login_port": login_port,
                "controller_port": node.controller_port,
            }
            own = {name: value.format(id=node.id, **ports) for name, value in settings.items()}
            kafka.write_properties(node.config, {**cluster.properties(node), **own})
        try:
            cluster.start(features=())
            yield cluster
        finally:
            cluster.close()


@attrs.frozen
class Suite:
    """One foreign suite.

    ``run`` takes an address and names, and returns whether each test that ran has passed;
    ``upstream`` returns every test of the suite. ``settings`` are the broker's; ``variants`` are
    tests that need other settings. ``start``
    starts brokers, for a suite that needs more than their addresses.
    """

    name: str
    folder: Path
    run: Callable[[str, Sequence[str]], Mapping[str, bool]]
    upstream: Callable[[], Iterable[str]]
    settings: Mapping[str, str] = attrs.field(factory=dict)
    variants: Sequence[Variant] = ()
    node_count: int = 1
    start: Callable[[str, Mapping[str, str], int], Brokers] = running

    is_widened: bool = False
    """Whether it runs with more nodes than its tests were made for."""

    def read_list(self) -> list[listing.Listed]:
        listed = listing.read(self.folder / "tests.txt")
        return [listing.for_several(entry) for entry in listed] if self.is_widened else listed


@attrs.frozen
class Variant:
    """Tests of a suite that need a broker with settings of their own, or several brokers.

    ``{id}`` in a setting's value is each node's id; with several, ``{port}``,
    ``{login_port}`` and ``{controller_port}`` are its ports.
    """

    settings: Mapping[str, str]
    names: Callable[[], Iterable[str]]
    node_count: int = 1

    widens: bool = False
    """Whether its tests also run where the suite runs with more nodes."""


REPLICATED = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "broker.rack": "RACK{id}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
"""Settings of three nodes that replicate, as clusters of users have them."""


AUTHORIZING = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of a broker for tests that create ACLs, and may do everything without any."""


def widen(suite: Suite, node_count: int) -> Suite:
    """Return a suite for one broker as one that runs with several, which replicate."""
    own = {name: value for name, value in suite.settings.items() if name != "node.id"}
    return attrs.evolve(
        suite,
        name=f"{suite.name}_{node_count}_nodes",
        settings={**PLAIN_PROFILE, **REPLICATED, **own},
        variants=[
            attrs.evolve(variant, node_count=node_count) if variant.widens else variant
            for variant in suite.variants
            if variant.widens or variant.node_count > 1
        ],
        node_count=node_count,
        is_widened=True,
    )


def run_with_retries(
    suite: Suite, address: str, tests: Sequence[listing.Listed]
) -> dict[str, bool]:
    """Run tests with one broker; repeat failed flaky ones up to FLAKY_RETRIES times."""
    results = dict(suite.run(address, [entry.name for entry in tests])) if tests else {}
    for _ in range(FLAKY_RETRIES):
        flaky = [e.name for e in tests if e.mark == "flaky" and not results.get(e.name)]
        if flaky:
            results.update(suite.run(address, flaky))
    return results


def run_all(suite: Suite, kind: str, tests: Sequence[listing.Listed]) -> dict[str, bool]:
    """Run tests, each with a broker that has the required settings."""
    results: dict[str, bool] = {}
    groups: list[tuple[Variant, list[listing.Listed]]] = []
    others = list(tests)
    for variant in suite.variants:
        names = set(variant.names())
        groups.append((variant, [entry for entry in others if entry.name in names]))
        others = [entry for entry in others if entry.name not in names]
    for variant, entries in [(Variant({}, list, suite.node_count), others), *groups]:
        if not entries:
            continue
        settings = {**suite.settings, **variant.settings}
        with suite.start(kind, settings, variant.node_count) as (address, read_logs):
            outcome = run_with_retries(suite, address, entries)
            if not all(outcome.values()):
                print(f"the end of the brokers' logs:\n{read_logs()}")
            results.update(outcome)
    return results


def check(suite: Suite, kind: str) -> list[str]:
    """Run the expected tests and write the counts; return the problems, one a line."""
    listed = suite.read_list()
    results = run_all(suite, kind, [entry for entry in listed if entry.is_expected(kind)])
    problems = listing.failures(listed, kind, results)
    problems += listing.gaps(listed, suite.upstream(), results)
    counts = listing.tally(listed, kind, results)
    print(f"{suite.name} against {kind}: {json.dumps(counts)}")
    if kind in ("kafka", "kwire"):
        record(suite.name, kind, counts)
    return problems


def record(name: str, kind: str, counts: Mapping[str, object]) -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results.setdefault(name, {})[kind] = dict(counts)
    text = json.dumps(results, indent=2, sort_keys=True) + "\n"
    if not RESULTS.exists() or RESULTS.read_text() != text:
        RESULTS.write_text(text)


def try_out(suite: Suite, kind: str, names: Sequence[str]) -> list[str]:
    """Run tests regardless of their marks, write no counts; return those that did not pass."""
    results = run_all(suite, kind, [listing.Listed(name) for name in names])
    for name, passed in sorted(results.items()):
        print("passed" if passed else "FAILED", name)
    return [name for name in names if not results.get(name, False)]


def main(suite: Suite) -> int:
    parser = argparse.ArgumentParser(description=f"Run {suite.name} against a broker.")
    parser.add_argument("--broker", default="kwire", help="kwire, kafka or HOST:PORT")
    parser.add_argument("--only", default="", help="run these tests alone, by comma, listed or not")
    parser.add_argument("--nodes", type=int, default=suite.node_count, help="number of brokers")
    arguments = parser.parse_args()
    if arguments.nodes != suite.node_count:
        suite = widen(suite, arguments.nodes)
    if arguments.only:
        return 1 if try_out(suite, arguments.broker, arguments.only.split(",")) else 0
    problems = check(suite, arguments.broker)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
