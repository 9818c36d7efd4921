"""Measure the latency of an idle client while another keeps the broker busy, beside Apache Kafka.

    python benchmarks/stalls.py [--peers kwire,kafka] [--only NAME,...] [--rounds N]

A prober in a process of its own sends ApiVersions every millisecond over one connection to each
node that the load concerns. For each load the table has the longest and the 99th percentile of the
round trips, in milliseconds; "idle" has them without a load, which is the share of the machine
itself. The peers run in turn. A cell says so where a load failed; its traceback is on stderr.

Apache Kafka runs with a heap of 1 GB and the garbage collector of its own start scripts, unless
KAFKA_HEAP_OPTS and KAFKA_JVM_PERFORMANCE_OPTS set others.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.loads.clusters import (  # noqa: E402
    preferred_election_of_3000_partitions,
    truncation_of_30000_batches,
)
from benchmarks.loads.old_directory import search_of_300_segments_of_kafka_3_9  # noqa: E402
from benchmarks.loads.one_broker import Load, receive  # noqa: E402
from benchmarks.loads.scene import SCRUB, Prepare, Scene, on_broker  # noqa: E402
from kwire.codec.frame import request_frame  # noqa: E402
from kwire.codec.messages.api_versions import ApiVersionsRequest  # noqa: E402
from kwire.testing.wire import Closed  # noqa: E402

JVM: Final = {
    "KAFKA_HEAP_OPTS": "-Xms1g -Xmx1g",
    "KAFKA_JVM_PERFORMANCE_OPTS": "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 "
    "-XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent",
}
"""The defaults of Kafka's start scripts."""
PROBE_SECONDS: Final = 0.001
AFTERMATH_SECONDS: Final = 2.0
"""The time given to work that a request started and that goes on after its answer."""

FAILURES: Final = (
    OSError,
    EOFError,
    RuntimeError,
    AssertionError,
    subprocess.SubprocessError,
    KafkaException,
    Closed,
)
"""The exceptions of a load whose peer is too slow, or breaks."""
LOADS: Final[dict[str, Prepare]] = (
    {
        load.__name__: on_broker(load)
        for load in (
            Load.idle,
            Load.create_2000_partitions,
            Load.create_one_topic_of_2000,
            Load.delete_2000_partitions,
            Load.groups_40_members_120,
            Load.connections_5000,
            Load.reader_of_100_mb_answers,
            Load.search_of_300_segments,
            Load.delete_records_of_300_segments,
            Load.retention_of_300_segments,
            Load.questions_about_10000_partitions,
            Load.reader_of_10000_aborted_transactions,
            Load.compaction_of_200_mb,
        )
    }
    | {
        load.__name__: load
        for load in (
            search_of_300_segments_of_kafka_3_9,
            truncation_of_30000_batches,
            preferred_election_of_3000_partitions,
        )
    }
    | {"scrub_of_200_mb": on_broker(Load.scrub_of_200_mb, SCRUB)}
)


def probe(port: int, pipe: Connection) -> None:
    """Measure round trips until the pipe closes; send the times and lengths of all, in seconds."""
    os.nice(-5)
    frame = request_frame(18, 0, 1, "prober", ApiVersionsRequest())
    trips: list[tuple[float, float]] = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe.send("ready")
        while not pipe.poll():
            started = time.monotonic()
            sock.sendall(frame)
            size = 4 + int.from_bytes(receive(sock, 4), "big")
            receive(sock, size - 4)
            trips.append((started, time.monotonic() - started))
            time.sleep(PROBE_SECONDS)
    pipe.send(trips)


@contextmanager
def probing(ports: Sequence[int]) -> Iterator[list[Connection]]:
    """Run a prober of each port; yield the pipes to them, and end those that still run."""
    probers, pipes = [], []
    try:
        for port in ports:
            ours, theirs = multiprocessing.Pipe()
            prober = multiprocessing.Process(target=probe, args=(port, theirs))
            prober.start()
            theirs.close()
            probers.append(prober)
            assert ours.recv() == "ready"
            pipes.append(ours)
        yield pipes
    finally:
        for prober in probers:
            prober.terminate()
            prober.join()


def measure(scene: Scene) -> tuple[float, float]:
    """Return the longest and the 99th percentile of the round trips of one load, in ms."""
    trips: list[float] = []
    with probing(scene.ports) as pipes:
        time.sleep(0.3)
        begin = time.monotonic()
        scene.run()
        time.sleep(AFTERMATH_SECONDS)
        for pipe in pipes:
            pipe.send("end")
            trips += [length * 1000 for started, length in pipe.recv() if started >= begin - 0.1]
    return max(trips), statistics.quantiles(trips, n=100)[98]


def cell(name: str, peer: str, rounds: int) -> str:
    """Measure one load at one peer; return the medians of the rounds, or the reason for none."""
    figures = []
    try:
        for _ in range(rounds):
            with LOADS[name](peer) as scene:
                figures.append(measure(scene))
    except FAILURES as error:
        traceback.print_exc()
        return f"not measured: {type(error).__name__}"
    longest, high = (statistics.median(column) for column in zip(*figures, strict=True))
    return f"{longest:.1f} / {high:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every load at every peer in turn, and print the medians of the rounds."""
    parser = argparse.ArgumentParser(description="Longest waits of an idle client under load.")
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--only", default=",".join(LOADS))
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    for variable, value in JVM.items():
        os.environ.setdefault(variable, value)
    peers, names = options.peers.split(","), options.only.split(",")
    print("| load | " + " | ".join(f"{peer} longest / p99, ms" for peer in peers) + " |")
    print("|---|" + "---:|" * len(peers), flush=True)
    for name in names:
        cells = [cell(name, peer, options.rounds) for peer in peers]
        print(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
