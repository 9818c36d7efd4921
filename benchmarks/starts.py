"""Measure the starts of test brokers, and tests that each have topics of their own.

    python benchmarks/starts.py [--starts N] [--tests N] [--kafka N]

A start counts from the creation of a `kwire.testing.Broker` until a client has its metadata over a
new connection; one that raises is a failure. A reset counts from its call until its return, with
ten topics and a record in each. The tests run in a process of pytest with the plugin: each
creates two topics, and produces and fetches a record. With ``--kafka N`` so many starts of Apache
Kafka stand beside, each of a formatted node, in the same terms.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.harness.broker import make_broker  # noqa: E402
from kwire.codec.messages.metadata import MetadataRequest  # noqa: E402
from kwire.testing import Broker, BrokerError  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402
from tests.support.testing.clients import produce  # noqa: E402

TOPICS: Final = 10
TEST: Final = """
import pytest
from kwire.testing.wire import WireClient
from tests.support.testing.clients import fetch, produce


@pytest.mark.parametrize("number", range({count}))
def test_topics(kafka, kafka_topic_factory, number):
    with WireClient(*kafka.address) as client:
        for topic in (kafka_topic_factory(), kafka_topic_factory(3)):
            assert produce(client, topic) == 0
            records = []
            fetch(client, topic, [0], records=records)
            assert records[0]
"""


def ask(host: str, port: int) -> None:
    """Have a client get the metadata over a new connection."""
    with WireClient(host, port) as client:
        client.call(MetadataRequest(topics=None), 12)


def start_broker() -> float:
    """Start a test broker and end it; return the seconds until its first answer."""
    begin_s = time.perf_counter()
    with Broker() as broker:
        ask(*broker.address)
        return time.perf_counter() - begin_s


def start_kafka() -> float:
    """Start a node of Apache Kafka and end it; return the seconds until its first answer."""
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        broker = make_broker("kafka", Path(folder) / "node")
        try:
            host, _, port = broker.address.rpartition(":")
            ask(host, int(port))
            return time.perf_counter() - begin_s
        finally:
            broker.stop()


def times_of(start: Callable[[], float], count: int) -> tuple[list[float], int]:
    """Return the milliseconds of each start, and how many failed."""
    times, failures = [], 0
    for _ in range(count):
        try:
            times.append(start() * 1000)
        except (BrokerError, OSError):
            failures += 1
    return times, failures


def reset_times(count: int) -> tuple[list[float], int]:
    """Return the milliseconds of resets of a broker with topics and records."""
    times = []
    with Broker() as broker:
        for _ in range(count):
            with WireClient(*broker.address) as client:
                for number in range(TOPICS):
                    broker.create_topic(f"topic-{number}")
                    assert produce(client, f"topic-{number}") == 0
            begin_s = time.perf_counter()
            broker.reset()
            times.append((time.perf_counter() - begin_s) * 1000)
    return times, 0


def row(name: str, measured: tuple[list[float], int]) -> str:
    times, failures = measured
    if len(times) < 2:
        return f"| {name} | {len(times)} | | | {failures} |"
    p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
    return f"| {name} | {len(times)} | {statistics.median(times):.1f} | {p99:.1f} | {failures} |"


def run_tests(count: int) -> str:
    """Run so many tests with the plugin; return a line with their seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test_topics.py"
        file.write_text(TEST.format(count=count))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "kwire.testing.pytest_plugin"]
        begin_s = time.perf_counter()
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--rootdir", folder, str(file)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        elapsed_s = time.perf_counter() - begin_s
    last = done.stdout.strip().splitlines()[-1]
    return f"{count} tests with two topics each: {elapsed_s:.1f} s with pytest's start ({last})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--kafka", type=int, default=0)
    options = parser.parse_args(arguments)
    print("| step | count | p50 ms | p99 ms | failures |\n|---|---|---|---|---|")
    start_broker()  # Loads the modules, as the first test of a session does.
    print(row("start and first answer", times_of(start_broker, options.starts)), flush=True)
    print(row(f"reset of {TOPICS} topics", reset_times(options.starts)), flush=True)
    if options.kafka:
        print(row("start of Apache Kafka", times_of(start_kafka, options.kafka)), flush=True)
    print(run_tests(options.tests))


if __name__ == "__main__":
    main()
