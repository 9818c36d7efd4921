"""What every run of the tests ends with: how many lines of each vector file were gone through."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed: list[pytest.TestReport] = terminalreporter.stats.get("passed", [])
    said = {line for report in passed for line in report.capstdout.splitlines()}
    counts = sorted(line for line in said if ".jsonl.gz: " in line)
    if counts:
        terminalreporter.section("vectors")
        terminalreporter.write_line("\n".join(counts))
