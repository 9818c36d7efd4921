"""The list of a foreign suite's tests, with the expected result of each.

``tests.txt`` has one test per line: ``name``, or ``name  mark: reason; detail``. A test without a
mark must pass. The marks are:

* ``flaky``: may pass at a later try
* ``single``: must pass with one broker; not run with several
* ``kafka``: the same with Apache Kafka; not run against kwire, which lacks a function
* ``excluded``: run against neither server

Rules: docs/compatibility.md counts by the reason before the semicolon; a test that is neither run
nor listed is a problem, and so is a line that names no test of the suite.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

MARKS = ("", "kafka", "flaky", "single", "excluded")


@attrs.frozen
class Listed:
    """One line of tests.txt."""

    name: str
    mark: str = ""
    reason: str = ""

    def is_expected(self, kind: str) -> bool:
        """Return whether this test must pass against a broker of ``kind``."""
        return self.mark in ("", "flaky", "single") or (self.mark == "kafka" and kind == "kafka")


def for_several(entry: Listed) -> Listed:
    """Return the entry as it counts for several brokers."""
    return attrs.evolve(entry, mark="excluded") if entry.mark in ("single", "kafka") else entry


def read(path: Path) -> list[Listed]:
    """Read a tests.txt; raise ValueError for a malformed line or a duplicate name."""
    listed: dict[str, Listed] = {}
    for line in path.read_text().splitlines():
        text = re.split(r"(?:^|\s)#", line)[0].strip()
        if not text:
            continue
        name, _, rest = text.partition("  ")
        mark, _, reason = (part.strip() for part in rest.partition(":"))
        if mark not in MARKS or bool(mark) != bool(reason):
            raise ValueError(f"{path}: not `name  mark: reason`: {line!r}")
        if name in listed:
            raise ValueError(f"{path}: {name} is listed twice")
        listed[name] = Listed(name, mark, reason)
    return list(listed.values())


def gaps(listed: Iterable[Listed], upstream: Iterable[str], ran: Iterable[str]) -> list[str]:
    """Return the differences between the list, the suite's tests and the tests that ran.

    A test may have parts (``name/part``) that are known only from a run; each part is listed.
    """
    names = {entry.name for entry in listed}
    whole, parts = set(upstream), set(ran)
    existing = whole | parts
    problems = [f"neither run nor listed: {name}" for name in sorted(existing - names)]
    strangers = {n for n in names - existing if n.partition("/")[0] not in whole}
    return [*problems, *(f"listed, but no test of the suite: {name}" for name in sorted(strangers))]


def failures(listed: Iterable[Listed], kind: str, results: Mapping[str, bool]) -> list[str]:
    """Return the expected tests that failed or did not run with a broker of ``kind``."""
    problems = []
    for entry in listed:
        if entry.is_expected(kind) and not results.get(entry.name, False):
            what = "failed" if entry.name in results else "did not run"
            problems.append(f"{what}: {entry.name}")
    return problems


def tally(listed: Iterable[Listed], kind: str, results: Mapping[str, bool]) -> dict[str, object]:
    """Count the passed, the failed, and by reason the left out tests; the sum is all tests."""
    passed = failed = 0
    excluded: Counter[str] = Counter()
    for entry in listed:
        if not entry.is_expected(kind):
            excluded[entry.reason.partition(";")[0].strip()] += 1
        elif results.get(entry.name, False):
            passed += 1
        else:
            failed += 1
    return {"passed": passed, "failed": failed, "excluded": dict(sorted(excluded.items()))}


def find_uncalled(operations: Iterable[str], sources: Mapping[str, Iterable[Path]]) -> list[str]:
    """Return the operations (``library/Type.method``) that the library's scenarios never call.

    ``sources`` are the files with each library's scenarios.
    """
    texts = {
        library: "".join(path.read_text() for path in paths) for library, paths in sources.items()
    }
    missing = []
    for operation in operations:
        library, _, method = operation.partition("/")
        if not re.search(rf"\.{re.escape(method.rpartition('.')[2])}\(", texts[library]):
            missing.append(operation)
    return missing
