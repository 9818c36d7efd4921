"""Measure brokers in the process of a test: starts, resets, memory, and a run of pytest.

    python benchmarks/in_process.py [--starts N] [--brokers N] [--tests N]

The first start imports and compiles what the later ones reuse, so it is shown alone.  A reset
deletes three topics of four partitions, a group and the internal topics.  The memory is that of
brokers that run at the same time and have a topic each: the growth of the process, and of the files
in memory.  The run of pytest counts the whole process, with a fixture that makes a topic for each
test.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kwire.testing import Broker  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402
from tests.support.testing.clients import commit  # noqa: E402

MODULE: Final = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_one(kafka_topic, number):
    assert kafka_topic
"""


def measure_ms(call: Callable[[], object]) -> float:
    """Return the milliseconds that a call takes."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


def summary(times_ms: Sequence[float]) -> str:
    ordered = sorted(times_ms)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return (
        f"p50 {statistics.median(ordered):.1f} ms, p99 {p99:.1f} ms, longest {ordered[-1]:.1f} ms"
    )


def measure_starts(count: int) -> None:
    starts, ends, resets = [], [], []
    cpu_s = 0.0
    for number in range(count):
        broker = Broker()
        cpu_before_s = time.process_time()
        starts.append(measure_ms(broker.__enter__))
        cpu_s += time.process_time() - cpu_before_s if number else 0.0
        for name in "abc":
            broker.create_topic(name, 4)
        with WireClient(*broker.address) as client:
            commit(client, "group", "a", 1)
        resets.append(measure_ms(broker.reset))
        ends.append(measure_ms(partial(broker.__exit__, None, None, None)))
    print(f"first start   {starts[0]:.1f} ms")
    print(f"later starts  {summary(starts[1:])} ({count - 1} in one process)")
    print(f"CPU of a start {cpu_s * 1000 / max(1, count - 1):.1f} ms")
    print(f"resets        {summary(resets)}")
    print(f"ends          {summary(ends)}")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def file_bytes() -> int:
    stats = os.statvfs("/dev/shm")
    return (stats.f_blocks - stats.f_bfree) * stats.f_frsize


def measure_memory(count: int) -> None:
    with Broker() as first:
        first.create_topic("orders")
    before, files_before = resident_bytes(), file_bytes()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(Broker()).create_topic("orders")
        process = (resident_bytes() - before) / count / 1e6
        files = (file_bytes() - files_before) / count / 1e6
    print(
        f"memory        {process:.1f} MB in the process, {files:.1f} MB in files ({count} brokers)"
    )


def measure_pytest(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_topics.py").write_text(MODULE.format(count=count))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "kwire.testing.pytest_plugin"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}

        def run(*arguments: str) -> None:
            subprocess.run(
                [*command, *arguments], cwd=folder, env=environment, check=True, capture_output=True
            )

        empty = measure_ms(lambda: run("-k", "test_one and 0]", "--collect-only"))
        print(
            f"{count} tests     {measure_ms(run) / 1000:.2f} s, each with a topic of its own; ",
            end="",
        )
        print(f"pytest alone {empty / 1000:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=201)
    parser.add_argument("--brokers", type=int, default=20)
    parser.add_argument("--tests", type=int, default=200)
    options = parser.parse_args()
    measure_starts(options.starts)
    measure_memory(options.brokers)
    measure_pytest(options.tests)


if __name__ == "__main__":
    main()
