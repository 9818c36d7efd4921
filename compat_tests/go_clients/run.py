"""Go's three client libraries, at commonly pinned protocol versions: ``scripts/test --all``.

    python -m compat_tests.go_clients.run --broker kwire|kafka|HOST:PORT

The program beside this file is compiled once per content into the cache; it needs Go, and the Go
module proxy the first time. kafka-go always uses old protocol versions, sarama and franz-go those
of the configured release of Kafka. Some scenarios log in as the user of
:mod:`compat_tests.harness.logins`; those over TLS are in :mod:`compat_tests.security`, which uses
the same program. In addition to the scenarios, the list names every operation of the libraries'
admin clients that no scenario calls.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.go_tests import find_go
from compat_tests.harness.listing import find_uncalled
from compat_tests.harness.logins import LOGINS, start
from compat_tests.harness.suite import AUTHORIZING, Suite, Variant, cache, main

FOLDER = Path(__file__).resolve().parent
SECONDS = 900


def binary() -> Path:
    """Return the path of the compiled program; compile it first if needed."""
    sources = sorted([*FOLDER.glob("*.go"), FOLDER / "go.mod", FOLDER / "go.sum"])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    built = cache("go-clients") / digest
    if built.exists():
        return built
    subprocess.run([find_go(), "build", "-o", str(built), "."], cwd=FOLDER, check=True)
    return built


SOURCES = {
    library: sorted(FOLDER.glob(pattern))
    for library, pattern in {
        "kafka-go": "kafka_go*.go",
        "sarama": "sarama*.go",
        "franz": "franz*.go",
    }.items()
}


def upstream() -> list[str]:
    """Return the program's scenarios, and the libraries' operations that none of them calls."""
    return [*_print_names("scenarios"), *find_uncalled(_print_names("operations"), SOURCES)]


def _print_names(what: str) -> list[str]:
    command = [str(binary()), what]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    command = [str(binary()), address, *names]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    print(result.stdout + result.stderr)
    lines = re.findall(r"^(PASS|FAIL) ([^\s:]+)", result.stdout, re.MULTILINE)
    return {name: outcome == "PASS" for outcome, name in lines}


def with_acls() -> list[str]:
    """Return the scenarios that create ACLs."""
    return [name for name in _print_names("scenarios") if name.endswith("/acls")]


def with_logins() -> list[str]:
    """Return the scenarios whose clients log in."""
    names = ("log-in", "delegation-tokens")
    return [name for name in _print_names("scenarios") if name.partition("/")[2] in names]


SUITE = Suite(
    "go_clients",
    FOLDER,
    run,
    upstream,
    variants=[
        Variant(AUTHORIZING, with_acls),
        Variant(LOGINS, with_logins),
    ],
    start=start,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
