"""franz-go's own kgo tests, from the Go module proxy. Needs Go; part of ``scripts/test --all``.

    python -m compat_tests.franz_go.run --broker kwire|kafka|HOST:PORT

The tests are compiled once into the cache. The subtests of a test are known only when it runs.
The tests of SCRAM use a listener of their own, as a user that is created for them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.go_tests import compile_tests, list_tests, run_tests
from compat_tests.harness.logins import LOGINS, PASSWORD, USER, start
from compat_tests.harness.suite import Suite, Variant, cache, main

FOLDER = Path(__file__).resolve().parent
MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.2"
SECONDS = 900
AT_ONCE = 2
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
    return list_tests(binary(), package())


def package() -> Path:
    """Return the folder in which the tests run."""
    return binary().parent / "source" / "pkg" / "kgo"


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    top = sorted({name.split("/")[0] for name in names})
    environment = {
        "KGO_SEEDS": address,
        "KGO_TEST_RF": str(min(3, len(address.split(",")))),
        "KGO_TEST_RECORDS": RECORDS,
        "KGO_TEST_MAX_TOPIC_PARTS": "7",
        "KGO_LOG_LEVEL": "none",
    }
    if set(names) <= set(WITH_LOGINS):
        environment |= {"KGO_TEST_SCRAM_SEEDS": address, "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}"}
    return run_tests(binary(), package(), top, environment, seconds=SECONDS, at_once=AT_ONCE)


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
