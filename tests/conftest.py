"""Settings of every run of the tests: random tests repeat themselves, vectors are counted.

pytest-trio uses a virtual clock only if the test itself asks for it.  A test whose fixture asks for
one would wait in real time, so it is an error.

Hypothesis draws the same examples every time; ``KWIRE_EXPLORE=1`` draws new ones, to find cases
that were not thought of.  A failure prints how to reproduce it.

The collected tests live as long as the run, so the garbage collector is off while they are
collected, and does not visit them afterwards: a full collection of all of them takes 0.2 s.
"""

import gc
import os

import pytest
from hypothesis import settings

settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("explore" if os.environ.get("KWIRE_EXPLORE") else "repeat")


def pytest_configure() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


CLOCKS = {"autojump_clock", "mock_clock"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            taken = set(item._fixtureinfo.argnames)
            if CLOCKS & set(item.fixturenames) and not CLOCKS & taken:
                raise pytest.UsageError(f"{item.nodeid} has to take its fixture's clock itself")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed: list[pytest.TestReport] = terminalreporter.stats.get("passed", [])
    lines = {line for report in passed for line in report.capstdout.splitlines()}
    counts = sorted(line for line in lines if ".jsonl.gz: " in line)
    if counts:
        terminalreporter.section("vectors")
        terminalreporter.write_line("\n".join(counts))
