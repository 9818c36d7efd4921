"""Measure an offsets topic that one group has committed to for months, beside Apache Kafka.

    python benchmarks/aged_group.py [--peers kwire,kafka] [--commits N] [--partitions N]

A client commits the offsets of all partitions of a topic again and again, each request one batch of
the offsets topic. The table has the broker's CPU seconds for a million commits with its cleaner's,
the largest and the last size of `__consumer_offsets` in MB, and the seconds from the ready line of
a restarted broker until it answers for the group's offsets. The settings are the defaults but for
how often the cleaner looks for work. The peers run in turn. Linux only.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.confluent_kafka.clients import create  # noqa: E402
from compat_tests.harness.broker import Broker, make_broker  # noqa: E402
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest  # noqa: E402
from kwire.codec.messages.offset_commit import OffsetCommitRequest  # noqa: E402
from kwire.codec.messages.offset_fetch import OffsetFetchRequest  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402

GROUP, TOPIC = "aged", "watched"
SETTINGS: Final = {"log.cleaner.backoff.ms": "1000"}
IN_FLIGHT: Final = 4
SETTLED_SECONDS: Final = 20.0
"""The time without a change of the size after which the cleaner is taken to have caught up."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
MB: Final = 1 << 20


class Figures(NamedTuple):
    """The figures of one peer."""

    cpu_s: float
    largest_bytes: int
    last_bytes: int
    load_s: float


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its children, alive or not."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == pid:
            total += sum(map(int, fields[11:15])) / TICKS
        elif int(fields[1]) == pid:
            total += sum(map(int, fields[11:13])) / TICKS
    return total


def stored_bytes(broker: Broker) -> int:
    total = 0
    for path in broker.data.glob("__consumer_offsets-*/*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # The cleaner has just replaced it.
    return total


def commit(partitions: int, number: int) -> OffsetCommitRequest:
    """Return a commit of one offset for every partition."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=GROUP,
        member_id="",
        topics=[
            topic(
                name=TOPIC,
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=number, committed_metadata=""
                    )
                    for index in range(partitions)
                ],
            )
        ],
    )


def wait_coordinator(port: int) -> None:
    """Look the group's coordinator up until there is one, which creates the offsets topic."""
    with WireClient("127.0.0.1", port, timeout_s=60) as client:
        while client.call(FindCoordinatorRequest(key=GROUP, key_type=0), 3).error_code:
            time.sleep(0.1)
        while client.call(commit(1, 0), 7).topics[0].partitions[0].error_code:
            time.sleep(0.1)


def commit_all(broker: Broker, requests: int, partitions: int) -> int:
    """Send all commits, a few at a time; return the largest size of the topic, in bytes."""
    largest = sent = 0
    with WireClient("127.0.0.1", broker.port, timeout_s=120) as client:
        for number in range(requests):
            while sent < min(requests, number + IN_FLIGHT):
                client.send(commit(partitions, sent), 7)
                sent += 1
            _, response = client.receive()
            codes = {part.error_code for part in response.topics[0].partitions}
            assert codes == {0}, codes
            if number % 100 == 0:
                largest = max(largest, stored_bytes(broker))
    return largest


def settle(broker: Broker) -> int:
    """Wait until the size of the topic no longer changes, and return it in bytes."""
    size, since = stored_bytes(broker), time.monotonic()
    while time.monotonic() < since + SETTLED_SECONDS:
        time.sleep(0.5)
        if (now := stored_bytes(broker)) != size:
            size, since = now, time.monotonic()
    return size


def load_seconds(broker: Broker, partitions: int, expected: int) -> float:
    """Restart the broker; return the seconds until it answers for the group's offsets."""
    broker.restart()
    started = time.monotonic()
    topic = OffsetFetchRequest.OffsetFetchRequestTopic
    request = OffsetFetchRequest(
        group_id=GROUP, topics=[topic(name=TOPIC, partition_indexes=list(range(partitions)))]
    )
    while True:
        try:
            with WireClient("127.0.0.1", broker.port, timeout_s=60) as client:
                while (response := client.call(request, 7)).error_code:
                    time.sleep(0.01)
            break
        except OSError:
            time.sleep(0.01)
    offsets = {part.committed_offset for part in response.topics[0].partitions}
    assert offsets == {expected}, offsets
    return time.monotonic() - started


def measure(kind: str, commits: int, partitions: int) -> Figures:
    requests = commits // partitions
    with tempfile.TemporaryDirectory() as folder:
        broker = make_broker(kind, Path(folder), SETTINGS)
        try:
            create(broker.address, TOPIC, partitions)
            wait_coordinator(broker.port)
            assert broker.process is not None
            before = cpu_seconds(broker.process.pid)
            largest = commit_all(broker, requests, partitions)
            size = settle(broker)
            cpu = cpu_seconds(broker.process.pid) - before
            return Figures(cpu, largest, size, load_seconds(broker, partitions, requests - 1))
        finally:
            broker.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the growth of the offsets topic.")
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--commits", type=int, default=20_000_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    options = parser.parse_args(arguments)
    print(f"{'peer':8} {'CPU s a million':>16} {'largest MB':>11} {'last MB':>8} {'load s':>7}")
    for kind in options.peers.split(","):
        figures = measure(kind, options.commits, options.partitions)
        print(
            f"{kind:8} {figures.cpu_s * 1e6 / options.commits:16.2f} "
            f"{figures.largest_bytes / MB:11.1f} {figures.last_bytes / MB:8.1f} "
            f"{figures.load_s:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
