"""Measure the memory of idle connections, waiting fetches and partitions, beside Apache Kafka.

    python benchmarks/memory.py [--peers kwire,kafka] [--connections N] [--partitions N]

Each figure is the growth of the broker's process over the items, in KB for each of them. Every
figure has a broker of its own that has just started and has already served a few such items, and
the size counts once it has not changed for three seconds: kwire creates most partitions of a large
topic in the background, in the seconds after the topic, so that whatever is measured in these
seconds would contain them. A JVM takes most memory from its heap, which it has reserved before.
"""

import argparse
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.harness.broker import make_broker  # noqa: E402
from kwire.codec.frame import request_frame  # noqa: E402
from kwire.codec.messages.api_versions import ApiVersionsRequest  # noqa: E402
from kwire.codec.messages.create_topics import CreateTopicsRequest  # noqa: E402
from kwire.codec.messages.fetch import FetchRequest  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402

FETCH_VERSION: Final = 11
"""The last version that names topics."""
FIRST: Final = 5
"""The items before those that are measured."""
SETTLED_S: Final = 3
"""The seconds without a change of size after which a size counts."""


def create_topic(port: int, name: str, partitions: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1
    )
    with WireClient("127.0.0.1", port, timeout_s=60.0) as client:
        answer = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
    assert answer.topics[0].error_code == 0, answer


def connections(port: int, count: int, frame: bytes, *, are_answered: bool) -> list[socket.socket]:
    """Open connections that each send a request, and keep them open."""
    opened = []
    for _ in range(count):
        opened.append(socket.create_connection(("127.0.0.1", port)))
        opened[-1].sendall(frame)
    for each in opened if are_answered else ():
        each.recv(4096)
    return opened


def idle_connections(port: int, count: int) -> object:
    frame = request_frame(18, 0, 1, "client", ApiVersionsRequest())
    return connections(port, count, frame, are_answered=True)


def waiting_fetches(port: int, count: int) -> object:
    topic = FetchRequest.FetchTopic
    place = topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=600_000, min_bytes=1, topics=[topic(topic="memory", partitions=[place])]
    )
    frame = request_frame(1, FETCH_VERSION, 1, "client", request)
    return connections(port, count, frame, are_answered=False)


def new_partitions(port: int, count: int) -> object:
    create_topic(port, f"topic-{count}", count)
    return None


def settled_kb(process: int) -> int:
    """Return the size of a process once it has not changed for a while, in KB."""
    size, since = 0, time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        status = Path(f"/proc/{process}/status").read_text()
        size_line = re.search(r"VmRSS:\s+(\d+)", status)
        assert size_line is not None
        if abs(int(size_line[1]) - size) > 64:
            size, since = int(size_line[1]), time.monotonic()
        time.sleep(0.2)
    return size


def measure(peer: str, add: Callable[[int, int], object], count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        broker = make_broker(peer, Path(folder))
        assert broker.process is not None
        try:
            create_topic(broker.port, "memory", 1)
            first = add(broker.port, FIRST)
            before = settled_kb(broker.process.pid)
            items = add(broker.port, count)
            grown = settled_kb(broker.process.pid) - before
            del first, items
        finally:
            broker.close()
    return grown / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=1000)
    options = parser.parse_args()
    peers = options.peers.split(",")
    print("| KB each | " + " | ".join(peers) + " |")
    print("|---|" + "---:|" * len(peers))
    for name, add, count in (
        ("an idle connection", idle_connections, options.connections),
        ("a fetch that waits", waiting_fetches, options.connections),
        ("a partition", new_partitions, options.partitions),
    ):
        figures = [f"{measure(peer, add, count):.2f}" for peer in peers]
        print(f"| {name} | " + " | ".join(figures) + " |", flush=True)


if __name__ == "__main__":
    main()
