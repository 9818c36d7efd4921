"""The tests of franz-go's simulated cluster (kfake), from the Go module proxy, with real brokers.

    python -m compat_tests.kfake.run --broker kwire|kafka|HOST:PORT

franz-go derived these tests from those of Apache Kafka; many are about consumer groups (KIP-848).
`cluster.go` takes the place of the simulated cluster. Tests that replace a broker's answers are
left out. Part of ``scripts/test --all``; needs Go.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.go_tests import compile_tests, find_go, list_tests, run_tests
from compat_tests.harness.suite import Suite, Variant, cache, main

FOLDER = Path(__file__).resolve().parent
MODULE = "github.com/twmb/franz-go/pkg/kfake"
VERSION = "v0.0.0-20260918054303-01f206a7e32c"
PACKAGE = "kafka_tests"
CLIENT = ("github.com/twmb/franz-go@v1.22.2", "github.com/twmb/franz-go/pkg/kadm@v1.19.0")
"""The releases of the client and of its administrator: the module's own are too old for its tests,
because its repository has a newer client beside it."""
SECONDS = 600
SETTINGS = {
    "node.id": "0",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}
"""The heartbeat interval is that of the tests' own helper."""
SMALL = Variant({"group.max.size": "1"}, lambda: ("TestGroupMaxSizeClassic",))


def replace_cluster(source: Path) -> None:
    """Put `cluster.go` in the place of the simulated cluster, and require the client."""
    for path in source.glob("*.go"):
        path.unlink()
    shutil.copy(FOLDER / "cluster.go", source)
    subprocess.run([find_go(), "get", *CLIENT], cwd=source, check=True)


def binary() -> Path:
    """Return the path of the compiled tests; compile them first if needed."""
    built = cache(f"kfake-{VERSION}") / "kfake.test"
    compile_tests(built, MODULE, VERSION, f"./{PACKAGE}", prepare=replace_cluster)
    return built


def package() -> Path:
    """Return the folder in which the tests run."""
    return binary().parent / "source" / PACKAGE


def upstream() -> list[str]:
    """Return every test of the package."""
    return list_tests(binary(), package())


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    environment = {"KFAKE_SEEDS": address}
    results = run_tests(binary(), package(), names, environment, seconds=SECONDS, at_once=1)
    return {name: passed for name, passed in results.items() if "/" not in name}


SUITE = Suite("kfake", FOLDER, run, upstream, settings=SETTINGS, variants=[SMALL])

if __name__ == "__main__":
    sys.exit(main(SUITE))
