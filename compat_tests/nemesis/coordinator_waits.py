"""The longest waits of transactional workers while their coordinators are out of reach.

    python -m compat_tests.nemesis.coordinator_waits [--broker kwire|kafka] [--faults N]
        [--only FAULT ...] [--seed N] [--workers N] [--debug] [--directory DIR]

Three nodes in Linux network namespaces. Workers, each a process with librdkafka, consume from one
group and produce in transactions. A fault hits the node that coordinates the group or the first
worker's transactional id, lasts for up to 13 seconds and is then mended; the next one comes when
every worker has committed again. For each fault the output has a line with each worker's longest
time without a commit, and the last line has the distribution over all faults. With ``--debug`` the
workers' logs in the directory have librdkafka's view; the nodes' logs are there in any case.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests.cluster.nodes import Node
from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually
from compat_tests.nemesis.clients import call_limited
from compat_tests.nemesis.links import CLIENTS, Namespaces, enter_isolation
from compat_tests.nemesis.replicas import is_in_sync
from compat_tests.nemesis.trial import SETTINGS, LinkedCluster
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.testing.wire import Closed

MODULE: Final = "compat_tests.nemesis.coordinator_waits"
NODES: Final = (1, 2, 3)
SOURCE, TARGET, GROUP = "t", "t-results", "workers"
PARTITIONS: Final = 6
RECORDS: Final = 400_000
MOST: Final = 20
"""The most records of one transaction."""
PAUSE_S: Final = 0.1
TRANSACTION_MS: Final = 20_000
SESSION_MS: Final = 10_000
FAULT_S: Final = (8.0, 13.0)
"""The shortest and the longest time of a fault: longer than a session."""
SHORT_S: Final = (1.0, 5.0)
"""The same for every third fault: shorter than a session."""
CALL_S: Final = 15.0
SLOW_S: Final = 2.0
HUNG_S: Final = 45.0
"""The time after which a worker abandons a call that hangs in librdkafka beyond its limit."""
SETTLE_S: Final = 3.0
WAIT_S: Final = 240.0
CLIENT: Final = {
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 1000,
    "reconnect.backoff.max.ms": 1000,
    "log_level": 3,
}


# A worker ----------------------------------------------------------------------------------


@attrs.define
class Worker:
    """A process that commits transactions all the time, and prints an event a line."""

    name: str
    bootstrap: str
    debug: str
    number: int = 0

    def note(self, event: str, **values: object) -> None:
        print(json.dumps({"at": time.time(), "event": event, **values}), flush=True)

    def settings(self, **more: object) -> dict[str, Any]:
        settings = {"bootstrap.servers": self.bootstrap, "client.id": self.name, **CLIENT, **more}
        if self.debug:
            settings |= {"debug": self.debug, "log_level": 7}
        return settings

    def run(self) -> None:
        """Commit transactions; begin again with new clients after an error that is final."""
        former = []  # The end of a fenced producer may hang.
        while True:
            producer, consumer = self._producer(), self._consumer()
            former.append(producer)
            try:
                self._repeat("init", lambda of: of.init_transactions(CALL_S), producer)
                consumer.subscribe([SOURCE])
                while True:
                    self._transact(producer, consumer)
            except KafkaException as error:
                self.note("restart", error=str(error))
            self._time("close", lambda of: of.close(), consumer)

    def _producer(self) -> Any:
        settings = {
            "transactional.id": self.name,
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.timeout.ms": TRANSACTION_MS,
            "request.timeout.ms": 8000,
            "linger.ms": 5,
        }
        return Producer(self.settings(**settings))

    def _consumer(self) -> Any:
        settings = {
            "group.id": GROUP,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 1000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
        return Consumer(self.settings(**settings))

    def _transact(self, producer: Any, consumer: Any) -> None:
        began = time.time()
        messages = [m for m in consumer.consume(MOST, 1.0) if m.error() is None]
        if time.time() - began > SLOW_S:
            self.note("slow", call="consume", seconds=round(time.time() - began, 1))
        if not messages:
            return
        producer.begin_transaction()
        offsets = {(m.topic(), m.partition()): m.offset() + 1 for m in messages}
        self.number += 1
        try:
            for message in messages:
                producer.produce(TARGET, message.value(), partition=message.partition())
            positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
            group = consumer.consumer_group_metadata()
            self._repeat(
                "offsets",
                lambda of: of.send_offsets_to_transaction(positions, group, CALL_S),
                producer,
            )
            self._repeat("commit", lambda of: of.commit_transaction(CALL_S), producer)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.note("abort", error=str(error))
            self._repeat("abort", lambda of: of.abort_transaction(CALL_S), producer)
            for topic, partition in offsets:
                first = min(m.offset() for m in messages if m.partition() == partition)
                consumer.seek(TopicPartition(topic, partition, first))
            return
        self.note("commit", number=self.number)
        time.sleep(PAUSE_S)

    def _repeat(self, what: str, call: Callable[[Any], Any], client: Any) -> None:
        """Make a call until it succeeds or its error is final."""
        while True:
            try:
                self._time(what, call, client)
                return
            except KafkaException as error:
                self.note("failed", call=what, error=str(error))
                if not error.args[0].retriable():
                    raise

    def _time(self, what: str, call: Callable[[Any], Any], client: Any) -> None:
        """Make a call, and note it if it is slow or hangs."""
        began = time.time()
        try:
            call_limited(partial(call, client), HUNG_S)
        finally:
            if time.time() - began > SLOW_S:
                event = "hung" if time.time() - began >= HUNG_S else "slow"
                self.note(event, call=what, seconds=round(time.time() - began, 1))


# The faults --------------------------------------------------------------------------------


@attrs.define
class Waits:
    """A run: the cluster, its workers, and the waits that were seen."""

    options: argparse.Namespace
    directory: Path
    links: Namespaces
    cluster: LinkedCluster
    random: Random
    processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    waits: dict[str, list[float]] = attrs.field(factory=dict)
    """The longest wait of each worker at each fault, by the kind of fault."""

    def faults(self) -> dict[str, Callable[[Node], None]]:
        """Return the functions that begin each fault of a node."""
        return {
            "pause": lambda node: self._signal(node, signal.SIGSTOP),
            "kill": lambda node: node.kill(),
            "unplug": lambda node: self.links.unplug(node.id),
            "split": self._split,
            "partial": self._partial,
            "clients": lambda node: self._cut((CLIENTS, node.id), (node.id, CLIENTS)),
        }

    def _signal(self, node: Node, number: signal.Signals) -> None:
        if node.process is not None and node.alive:
            node.process.send_signal(number)

    def _cut(self, *links: tuple[int, int]) -> None:
        for source, target in links:
            self.links.cut(source, target)

    def _split(self, node: Node) -> None:
        others = [other for other in NODES if other != node.id]
        self._cut(*((node.id, o) for o in others), *((o, node.id) for o in others))

    def _partial(self, node: Node) -> None:
        other = self.random.choice([other for other in NODES if other != node.id])
        self._cut((node.id, other), (other, node.id))

    def heal(self) -> None:
        self.links.heal()
        for node in self.cluster.nodes.values():
            self._signal(node, signal.SIGCONT)
            if not node.alive:
                node.launch()

    def coordinator(self, key_type: int, key: str) -> Node:
        def find() -> int | None:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            try:
                with self.cluster.nodes[1].client(5.0) as client:
                    (answer,) = client.call(request, 6).coordinators
            except (OSError, Closed):
                return None
            return None if answer.error_code else answer.node_id

        node_id = eventually(find, "a coordinator", 60)
        assert node_id is not None
        return self.cluster.nodes[node_id]

    def start_workers(self) -> None:
        for number in range(self.options.workers):
            name = f"worker-{number}"
            command = [sys.executable, "-m", MODULE, "--worker", name]
            command += ["--bootstrap", self.cluster.bootstrap]
            if self.options.debug:
                command += ["--debug"]
            with (
                (self.directory / f"{name}.events").open("wb") as events,
                (self.directory / f"{name}.log").open("wb") as log,
            ):
                self.processes.append(subprocess.Popen(command, stdout=events, stderr=log))

    def commits(self, name: str) -> list[float]:
        """Return the times of a worker's commits."""
        return [event["at"] for event in self.events(name) if event["event"] == "commit"]

    def names(self) -> list[str]:
        return [f"worker-{number}" for number in range(self.options.workers)]

    def strike(self, number: int) -> None:
        """Begin a fault, end it, and report how long each worker waited for a commit."""
        kinds = self.options.only or sorted(self.faults())
        kind = kinds[number % len(kinds)]
        role = self.options.role or self.random.choice(("group", "transaction"))
        node = self.coordinator(*((0, GROUP) if role == "group" else (1, "worker-0")))
        seconds = self.random.uniform(*(SHORT_S if number % 3 == 2 else FAULT_S))
        began = time.time()
        self.faults()[kind](node)
        time.sleep(seconds)
        self.heal()
        healed = time.time()
        until = healed + WAIT_S
        while time.time() < until and not all(
            commits and commits[-1] > healed + 1 for commits in map(self.commits, self.names())
        ):
            time.sleep(0.2)
        eventually(lambda: is_in_sync(self.cluster), "all replicas are in sync", 120)
        time.sleep(SETTLE_S)
        longest = [self.longest(name, began) for name in self.names()]
        hung = sum(self.count_hung(name, began) for name in self.names())
        self.waits.setdefault(kind, []).extend(longest)
        self.report(
            at=time.strftime("%H:%M:%S", time.localtime(began)),
            began=round(began, 1),
            kind=kind,
            role=role,
            node=node.id,
            seconds=round(seconds, 1),
            waits=longest,
            hung=hung,
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.directory / f"{name}.events").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def count_hung(self, name: str, began: float) -> int:
        """Return how many of a worker's calls have hung in librdkafka since ``began``."""
        return sum(e["event"] == "hung" and e["at"] > began for e in self.events(name))

    def longest(self, name: str, began: float) -> float:
        """Return the longest time between two commits that are not both before ``began``."""
        commits = self.commits(name)
        before = [at for at in commits if at <= began][-1:]
        times = [*before, *(at for at in commits if at > began), time.time()]
        waits = (second - first for first, second in pairwise(times))
        return round(max(waits, default=WAIT_S), 1)

    def report(self, **values: object) -> None:
        print(json.dumps(values), flush=True)

    def run(self) -> None:
        for topic in (SOURCE, TARGET):
            create(self.cluster.bootstrap, topic, PARTITIONS, replicas=3)
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 20})
        for number in range(RECORDS):
            producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0
        self.start_workers()
        eventually(lambda: all(len(self.commits(n)) > 5 for n in self.names()), "commits", 120)
        try:
            for number in range(self.options.faults):
                self.strike(number)
        finally:
            for process in self.processes:
                process.kill()
            for kind, waits in sorted(self.waits.items()):
                self.report(kind=kind, **distribution(waits))
            everything = [wait for waits in self.waits.values() for wait in waits]
            self.report(kind="all", **distribution(everything))


def distribution(waits: Sequence[float]) -> dict[str, float]:
    """Return the number, median, 90th percentile and longest of some waits, in seconds."""
    ordered = sorted(waits)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered), 1),
        "p90": ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))],
        "longest": ordered[-1],
    }


def observe(options: argparse.Namespace, directory: Path) -> None:
    links = Namespaces.create(NODES)
    settings = {**SETTINGS, **dict(pair.split("=", 1) for pair in options.set)}
    cluster = LinkedCluster(directory, settings, links=links)
    for node_id in NODES:
        cluster.add(node_id, options.broker)
    try:
        cluster.start([] if options.features else ["group", "share", "streams"])
        Waits(options, directory, links, cluster, Random(options.seed)).run()
    finally:
        cluster.close()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=("kwire", "kafka"), default="kwire")
    parser.add_argument("--faults", type=int, default=24)
    parser.add_argument("--only", nargs="*", default=[], help="the kinds of faults")
    parser.add_argument("--role", choices=("group", "transaction"), help="default: by chance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], help="settings of the nodes")
    parser.add_argument("--features", action="store_true", help="all features of Kafka 4.3")
    parser.add_argument("--debug", action="store_true", help="have librdkafka log what it does")
    parser.add_argument("--directory", type=Path, help="where data and logs lie")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    if options.worker:
        debug = "eos,cgrp,broker,protocol" if options.debug else ""
        Worker(options.worker, options.bootstrap, debug).run()
        return
    if options.broker == "kafka":
        kafka.fetch()
    if reason := enter_isolation(["-m", MODULE, *arguments]):
        sys.exit(reason)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="waits-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"{options.broker}, seed {options.seed}, {directory}", flush=True)
    observe(options, directory)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
