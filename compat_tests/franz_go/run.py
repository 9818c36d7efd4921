"""franz-go's own kgo tests, from the Go module proxy. Needs Go; part of ``scripts/test --all``.

    python -m compat_tests.franz_go.run --broker kwire|kafka|HOST:PORT

The tests are compiled once into the cache. The subtests of a test are known only when it runs.
The tests of SCRAM use a listener of their own, as a user that is created for them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.go_tests import compile_tests
from compat_tests.harness.logins import LOGINS, PASSWORD, USER, start
from compat_tests.harness.suite import Suite, Variant, cache, main

FOLDER = Path(__file__).resolve().parent
MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.2"
SECONDS = 900
RECORDS = "20000"  # Upstream uses half a million.
WITH_LOGINS = ("TestSCRAMAuth", "TestSCRAMAuthBadCredentials")


def binary() -> Path:
    """Return the path of the compiled tests; compile them first if needed."""
    folder = cache(f"franz-go-{VERSION}")
    built = folder / "kgo.test"
    compile_tests(built, MODULE, VERSION, "./pkg/kgo")
    return built


def upstream() -> list[str]:
    """Return every test of the package."""
    command = [str(binary()), "-test.list", "."]
    listed = subprocess.run(command, cwd=package(), capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith("Test")]


def package() -> Path:
    """Return the folder in which the tests run."""
    return binary().parent / "source" / "pkg" / "kgo"


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    built = binary()
    top = sorted({name.split("/")[0] for name in names})
    environment = {
        **os.environ,
        "KGO_SEEDS": address,
        "KGO_TEST_RF": str(min(3, len(address.split(",")))),
        "KGO_TEST_RECORDS": RECORDS,
        "KGO_TEST_MAX_TOPIC_PARTS": "7",
        "KGO_LOG_LEVEL": "none",
    }
    if set(names) <= set(WITH_LOGINS):
        environment |= {"KGO_TEST_SCRAM_SEEDS": address, "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}"}
    command = [str(built), "-test.v", f"-test.timeout={SECONDS}s"]
    command += [f"-test.run=^({'|'.join(top)})$"]
    result = subprocess.run(
        command,
        cwd=package(),
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    (built.parent / "last-run.log").write_text(result.stdout + result.stderr)
    lines = re.findall(r"^\s*--- (PASS|FAIL): (\S+)", result.stdout, re.MULTILINE)
    return {name: outcome == "PASS" for outcome, name in lines}


SUITE = Suite(
    "franz_go",
    FOLDER,
    run,
    upstream,
    variants=[Variant(LOGINS, lambda: WITH_LOGINS, widens=True)],
    start=start,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
