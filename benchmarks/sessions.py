"""Count the brokers that a starved machine makes a controller fence falsely, beside Apache Kafka.

    python benchmarks/sessions.py [--peers kwire,kafka] [--session-ms N] [--heartbeat-ms N]
        [--minutes N] [--partitions N] [--set NAME=VALUE ...]

Three combined nodes on this machine have partitions with three replicas each (N replicas in all).
First they are left alone for a minute, and the table has the CPU time that each node takes. Then
the machine is starved: programs that compute share its processors, others write and sync files as
fast as the disk permits, and a producer with acks=all keeps the partitions busy. No process is
stopped, so every fencing is false; the controllers' metadata log has all of them, and the elections
of active controllers too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from confluent_kafka import KafkaException, Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from compat_tests.cluster.nodes import Cluster, Node  # noqa: E402
from compat_tests.harness.broker import kafka  # noqa: E402
from kwire.types import METADATA_TOPIC  # noqa: E402

NODES: Final = (1, 2, 3)
TOPICS: Final = 10
IDLE_S: Final = 60
INTERVAL_S: Final = 0.01
FENCED: Final = re.compile(r"BrokerRegistrationChangeRecord.*\bfenced=1\b")
LEADER_CHANGE: Final = "control=LEADER_CHANGE"
BURN: Final = "while True: pass"
WRITE: Final = """
import os, sys
block = os.urandom(1 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.seek(0)
        for _ in range(64):
            file.write(block)
        os.fsync(file.fileno())
"""
"""A program that rewrites 64 MiB again and again."""
LEASE_OVER: Final = "lease over"


class Starvation:
    """The programs that take processor and disk away from the nodes."""

    def __init__(self, directory: Path, burners: int, writers: int, niceness: int) -> None:
        prefix = ["nice", "-n", str(niceness), sys.executable, "-c"]
        commands = [[*prefix, BURN]] * burners
        commands += [[*prefix, WRITE, str(directory / f"disk-{n}")] for n in range(writers)]
        self.processes = [subprocess.Popen(command) for command in commands]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


class Producing:
    """One producer, and the longest time between two acknowledgements."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
        self.topics = topics
        self.acknowledged = self.failed = 0
        self.longest_s = 0.0
        self._last_at = time.monotonic()

    def _on_delivery(self, error: object, _: object) -> None:
        now = time.monotonic()
        self.longest_s, self._last_at = max(self.longest_s, now - self._last_at), now
        self.acknowledged += error is None
        self.failed += error is not None

    def produce(self, seconds: float) -> None:
        self._last_at = time.monotonic()
        end = self._last_at + seconds
        for number in count():
            if time.monotonic() >= end:
                return
            with suppress(BufferError):
                topic = self.topics[number % len(self.topics)]
                self.producer.produce(topic, b"x" * 100, on_delivery=self._on_delivery)
            self.producer.poll(INTERVAL_S)


def cpu_s(node: Node) -> float:
    """Return the processor time that a node has used so far."""
    assert node.process is not None
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def metadata_log(node: Node) -> str:
    """Return the records of a node's metadata log as text."""
    folder = node.directory / "data" / f"{METADATA_TOPIC}-0"
    command = [str(ROOT / "scripts" / "kwire"), "dump-log", "--records"]
    command += sorted(str(path) for path in folder.glob("*.log"))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def create_topics(cluster: Cluster, replicas: int) -> list[str]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    names = [f"t{number}" for number in range(TOPICS)]
    partitions = replicas // len(NODES) // TOPICS
    for name in names:  # One at a time: a busy machine takes its time.
        future = admin.create_topics(
            [NewTopic(name, partitions, replication_factor=len(NODES))], operation_timeout=120
        )[name]
        with suppress(KafkaException):
            future.result(180)
    end = time.monotonic() + 180
    while sum(len(admin.list_topics(name, 30).topics[name].partitions) for name in names) < (
        partitions * TOPICS
    ):
        assert time.monotonic() < end, "the topics are not there"
        time.sleep(1)
    return names


def counts(cluster: Cluster) -> tuple[int, int]:
    """Return the number of fencings, and of elections of active controllers, so far."""
    texts = [metadata_log(node) for node in cluster.controllers]
    fencings = max(len(FENCED.findall(text)) for text in texts)
    elections = max(text.count(LEADER_CHANGE) for text in texts)
    return fencings, elections


def run(peer: str, options: argparse.Namespace, settings: Mapping[str, str]) -> str:
    """Run the test with one peer and return the line of the table."""
    directory = Path(tempfile.mkdtemp(prefix=f"sessions-{peer}-", dir=options.directory))
    cluster = Cluster(directory, settings)
    starvation = None
    try:
        for node_id in NODES:
            cluster.add(node_id, peer)
        cluster.start()
        topics = create_topics(cluster, options.partitions)
        time.sleep(20)  # Let the replicas get into sync.
        before = [cpu_s(node) for node in cluster.brokers]
        time.sleep(IDLE_S)
        used = [(cpu_s(n) - b) / IDLE_S for n, b in zip(cluster.brokers, before, strict=True)]
        idle = "/".join(f"{100 * share:.1f}" for share in sorted(used))
        producing = Producing(cluster.bootstrap, topics)
        fenced_before, elected_before = counts(cluster)
        print(f"{peer}: idle CPU {idle} %, {fenced_before} fenced while starting", flush=True)
        starvation = Starvation(directory, options.burners, options.writers, options.nice)
        for minute in range(options.minutes):
            producing.produce(60)
            fencings, elections = counts(cluster)
            load = os.getloadavg()[0]
            leases = sum(node.read_log().count(LEASE_OVER) for node in cluster.brokers)
            print(
                f"{peer}: minute {minute + 1}, {fencings - fenced_before} false fencings,"
                f" {elections - elected_before} elections, {leases} leases over, load {load:.1f},"
                f" {producing.acknowledged} acknowledged, {producing.failed} failed,"
                f" longest pause {producing.longest_s:.2f} s",
                flush=True,
            )
        assert all(node.alive for node in cluster.brokers), "a node ended"
        return (
            f"{peer:6} {fencings - fenced_before:8} {elections - elected_before:9}"
            f" {producing.longest_s:9.2f} {producing.acknowledged:12} {idle:>20}"
        )
    finally:
        if starvation is not None:
            starvation.close()
        cluster.close()
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--session-ms", type=int, default=2000)
    parser.add_argument("--heartbeat-ms", type=int, default=500)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--partitions", type=int, default=3000, help="replicas on all nodes")
    parser.add_argument("--burners", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="of the programs that starve")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--directory", type=Path, help="where the nodes' data lie")
    parser.add_argument("--keep", action="store_true", help="keep the data and logs")
    options = parser.parse_args(arguments)
    peers = options.peers.split(",")
    if "kafka" in peers:
        kafka.fetch()
    settings = {
        "broker.session.timeout.ms": str(options.session_ms),
        "broker.heartbeat.interval.ms": str(options.heartbeat_ms),
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        **dict(text.split("=", 1) for text in options.set),
    }
    lines = [run(peer, options, settings) for peer in peers]
    print(f"{'peer':6} fencings elections longest s acknowledged    idle CPU % a node")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
