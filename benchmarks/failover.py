"""Measure for how long a producer gets no acknowledgement when a node fails, beside Apache Kafka.

    python benchmarks/failover.py [--peers kwire,kafka] [--only NAME,...] [--rounds N]
        [--set NAME=VALUE ...]

Three nodes with default settings, except for those of ``--set``, each in a network namespace of its
own (Linux, root), and one producer with acks=all that sends a record every 10 ms to one partition.
For each fault the table has the longest time between two acknowledgements, in seconds, from the
fault until 20 s later. The producer asks often for new metadata and waits a second at most for an
answer, else its own patience would be measured. The peers run in turn.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from confluent_kafka import Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from compat_tests.cluster.nodes import Node  # noqa: E402
from compat_tests.harness.broker import kafka  # noqa: E402
from compat_tests.nemesis.links import ISOLATED, Namespaces, isolated_command  # noqa: E402
from compat_tests.nemesis.trial import LinkedCluster  # noqa: E402

NODES: Final = (1, 2, 3)
INTERVAL_S: Final = 0.01
BEFORE_S: Final = 2.0
AFTER_S: Final = 20.0
SETTINGS: Final = {"default.replication.factor": "3", "min.insync.replicas": "2"}
PRODUCER: Final = {
    "linger.ms": 0,
    "request.timeout.ms": 1000,
    "socket.timeout.ms": 1000,
    "message.timeout.ms": 60_000,
    "topic.metadata.refresh.interval.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
}


class Trial:
    """A cluster with one topic, and the faults of its nodes; each fault names its victim."""

    def __init__(self, kind: str, directory: Path, settings: Mapping[str, str]) -> None:
        self.links = Namespaces.create(NODES)
        self.cluster = LinkedCluster(directory, {**SETTINGS, **settings}, links=self.links)
        for node_id in NODES:
            self.cluster.add(node_id, kind)
        self.cluster.start()

    def lead_from(self, node: Node) -> str:
        """Create a topic that a node leads and all have in sync; return its name."""
        name = f"t{time.monotonic_ns()}"
        replicas = [node.id, *(other for other in NODES if other != node.id)]
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.create_topics([NewTopic(name, 1, replica_assignment=[replicas])])[name].result(60)
        return name

    def other_than_active(self) -> Node:
        active = self.cluster.active()
        return next(node for node in self.cluster.brokers if node is not active)

    def kill_leader(self) -> float:
        victim = self.other_than_active()
        return self.gap(self.lead_from(victim), victim.kill)

    def kill_follower(self) -> float:
        victim = self.other_than_active()
        leader = next(node for node in self.cluster.brokers if node is not victim)
        return self.gap(self.lead_from(leader), victim.kill)

    def kill_active_controller(self) -> float:
        victim = self.cluster.active()
        return self.gap(self.lead_from(victim), victim.kill)

    def pause_leader(self) -> float:
        victim = self.other_than_active()
        return self.gap(self.lead_from(victim), lambda: pause(victim))

    def lose_host_of_leader(self) -> float:
        victim = self.other_than_active()
        return self.gap(self.lead_from(victim), lambda: self.links.unplug(victim.id))

    def lose_host_of_active_controller(self) -> float:
        victim = self.cluster.active()
        return self.gap(self.lead_from(victim), lambda: self.links.unplug(victim.id))

    def gap(self, topic: str, fault: Callable[[], object]) -> float:
        """Return the longest time in seconds without an acknowledgement around a fault."""
        times: list[float] = []
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, **PRODUCER})

        def on_delivery(error: object, _: object) -> None:
            if error is None:
                times.append(time.monotonic())

        def produce(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                producer.produce(topic, b"x" * 100, on_delivery=on_delivery)
                producer.poll(INTERVAL_S)

        produce(BEFORE_S)
        fault()
        began = time.monotonic()
        produce(AFTER_S)
        ended = time.monotonic()
        assert producer.flush(60) == 0, "records without an answer"
        times = [began, *(at for at in times if began < at < ended), ended]
        return max(after - before for before, after in pairwise(times))

    def restore(self) -> None:
        """Bring all nodes back."""
        self.links.heal()
        for node in self.cluster.nodes.values():
            if node.alive:
                assert node.process is not None
                os.kill(node.process.pid, signal.SIGCONT)
            else:
                node.launch()
        self.cluster.wait_complete()

    def close(self) -> None:
        self.cluster.close()
        self.links.close()


FAULTS: Final[dict[str, Callable[[Trial], float]]] = {
    "kill -9 of the leader's process": Trial.kill_leader,
    "kill -9 of a follower's process": Trial.kill_follower,
    "kill -9 of the active controller's node, which leads": Trial.kill_active_controller,
    "pause of the leader": Trial.pause_leader,
    "lost host of the leader": Trial.lose_host_of_leader,
    "lost host of the active controller, which leads": Trial.lose_host_of_active_controller,
}


def pause(node: Node) -> None:
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGSTOP)


def run(peer: str, names: Sequence[str], settings: Mapping[str, str]) -> None:
    """Print the gap of each fault, a line each; in namespaces of this process alone."""
    directory = Path(tempfile.mkdtemp(prefix=f"failover-{peer}-"))
    trial = Trial(peer, directory, settings)
    try:
        for name in names:
            print(f"{FAULTS[name](trial):.2f} {name}", flush=True)
            trial.restore()
    finally:
        trial.close()
        shutil.rmtree(directory, ignore_errors=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--only", default=",".join(FAULTS), help="beginnings of names of faults")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    peers = options.peers.split(",")
    names = [name for name in FAULTS if name.startswith(tuple(options.only.split(",")))]
    if ISOLATED in os.environ:
        return run(peers[0], names, dict(text.split("=", 1) for text in options.set))
    if "kafka" in peers:
        kafka.fetch()
    prefix = isolated_command()
    if isinstance(prefix, str):
        raise SystemExit(prefix)
    gaps: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for peer in peers:
            command = [*prefix, sys.executable, __file__, "--peers", peer, "--only", options.only]
            command += [argument for text in options.set for argument in ("--set", text)]
            environment = os.environ | {ISOLATED: "1"}
            child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            for line in child.stdout.decode().splitlines():
                gap, _, name = line.partition(" ")
                gaps.setdefault((name, peer), []).append(float(gap))
                print(f"{peer:6} {line}", flush=True)
    print(f"{'seconds without an acknowledgement':55} {' '.join(peers)}")
    for name in names:
        row = [f"{statistics.median(gaps[name, peer]):6.2f}" for peer in peers]
        print(f"{name:55} {' '.join(row)}")


if __name__ == "__main__":
    main(sys.argv[1:])
