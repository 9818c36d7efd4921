"""librdkafka's own tests of groups, with the consumer protocol (KIP-848).

    python -m compat_tests.librdkafka_consumer.run --broker kwire|kafka|HOST:PORT

The program is that of :mod:`compat_tests.librdkafka.run`, which runs all tests with the classic
protocol. ``tests.txt`` lists those in which the members of a group commit, move or leave.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from compat_tests.harness import listing
from compat_tests.harness.suite import Suite, main
from compat_tests.librdkafka.run import run, upstream

FOLDER = Path(__file__).resolve().parent


def of_groups() -> list[str]:
    """Return the listed tests that the suite has."""
    names = set(upstream())
    return [entry.name for entry in listing.read(FOLDER / "tests.txt") if entry.name in names]


SUITE = Suite("librdkafka_consumer", FOLDER, functools.partial(run, protocol="consumer"), of_groups)

if __name__ == "__main__":
    sys.exit(main(SUITE))
