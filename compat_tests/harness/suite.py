"""Running other people's suites: fetch, run, compare with a list, report.

``allow.txt`` names every test that must pass, one a line; ``name  kafka: reason`` is expected of
Apache Kafka only, for now, and the reason says what kwire lacks. Rules: a test of the list that did
not run is a failure; a listed test is never retried unless the suite's FINDINGS.md says it is flaky
against Kafka itself (``name  flaky: reason``: it may pass at a later try). Results are written to
``compat_tests/results.json``, from which docs/compatibility.md takes its numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compat_tests.harness.broker import ROOT, make_broker

FLAKY_RETRIES = 3
RESULTS = ROOT / "compat_tests" / "results.json"


SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""For unpacking archives; Python before 3.11.4 has no filters."""


def cache(*parts: str) -> Path:
    base = os.environ.get("KWIRE_CACHE") or str(Path.home() / ".cache" / "kwire")
    folder = Path(base, "suites", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@attrs.frozen
class Allowed:
    """One line of allow.txt."""

    name: str
    mark: str = ""
    reason: str = ""


def read_allowed(path: Path) -> list[Allowed]:
    found = []
    for line in path.read_text().splitlines():
        text = line.split("#")[0].strip()
        if text:
            name, _, rest = text.partition("  ")
            mark, _, reason = rest.strip().partition(":")
            found.append(Allowed(name.strip(), mark, reason.strip()))
    return found


@attrs.frozen
class Suite:
    """How to run one suite: names to run and an address in, name -> passed out."""

    name: str
    folder: Path
    run: Callable[[str, Sequence[str]], Mapping[str, bool]]
    settings: Mapping[str, str] = attrs.field(factory=dict)


def expected(suite: Suite, kind: str) -> list[Allowed]:
    allowed = read_allowed(suite.folder / "allow.txt")
    return [one for one in allowed if kind == "kafka" or one.mark != "kafka"]


def check(suite: Suite, kind: str, address: str) -> list[str]:
    """Run what the list names; the problems, one a line."""
    wanted = expected(suite, kind)
    results = dict(suite.run(address, [one.name for one in wanted]))
    for _ in range(FLAKY_RETRIES):
        again = [one.name for one in wanted if one.mark == "flaky" and not results.get(one.name)]
        if again:
            results.update(suite.run(address, again))
    problems = []
    for one in wanted:
        if one.name not in results:
            problems.append(f"did not run: {one.name}")
        elif not results[one.name]:
            problems.append(f"failed: {one.name}")
    passed = sum(bool(results.get(one.name)) for one in wanted)
    every = read_allowed(suite.folder / "allow.txt")
    print(f"{suite.name} against {kind}: {passed} of {len(every)} passed, {len(wanted)} expected")
    if kind in ("kafka", "kwire"):
        record(suite.name, kind, {"passed": passed, "expected": len(wanted), "of": len(every)})
    return problems


def record(name: str, kind: str, counts: Mapping[str, int]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(name, {})[kind] = dict(counts)
    text = json.dumps(known, indent=2, sort_keys=True) + "\n"
    if not RESULTS.exists() or RESULTS.read_text() != text:
        RESULTS.write_text(text)


def main(suite: Suite) -> int:
    parser = argparse.ArgumentParser(description=f"Run {suite.name} against a broker.")
    parser.add_argument("--broker", default="kwire", help="kwire, kafka or HOST:PORT")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        broker = make_broker(asked.broker, Path(scratch), suite.settings)
        try:
            problems = check(suite, asked.broker, broker.address)
        finally:
            broker.close()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
