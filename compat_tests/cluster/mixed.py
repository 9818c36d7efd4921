"""Clusters of nodes of both kinds, the clients that run on them, and the comparison of replicas.

Rules: the directories are formatted by Apache Kafka's own tool with its defaults, so all feature
levels are those of a new Apache Kafka cluster; every client thread that is started here ends with
its context.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import attrs
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.cluster.topics import NODES, create_on, describe, leader_of, wait_isr
from compat_tests.confluent_kafka.clients import is_end, partition_of, value_of
from compat_tests.durability.sessions import (
    REFUSED_FOR_NOW,
    Session,
    SessionEvent,
    SessionRecorder,
    SkippedSequence,
    producer_sessions,
)
from compat_tests.harness.broker import kafka
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import DEADLINE_SECONDS, eventually
from kwire.records.header import headers

PARTITIONS = 3
"""The partitions of a topic of :func:`create`: each node is the preferred leader of one."""
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.election.timeout.ms": "3000",
    "controller.quorum.fetch.timeout.ms": "8000",
    "controller.quorum.request.timeout.ms": "8000",
    "unclean.leader.election.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
CLIENT_SECONDS = START_SECONDS = 180
"""Deadlines on a machine that may be busy with other nodes' starts."""
PACE_S = 0.01
TRANSACTION_PACE_S = 0.1
STORAGE_TOOL = "kafka.tools.StorageTool"
Batch = tuple[int, int, int, int]
"""Base offset, leader epoch, size and checksum of a stored batch."""


def start(jvm: Jvm, directory: Path, kinds: Sequence[str], *, dynamic: bool = False) -> Cluster:
    """Start a cluster of combined nodes of these kinds, formatted by Apache Kafka."""
    cluster = Cluster(directory, SETTINGS, dynamic=dynamic)
    for node_id, kind in enumerate(kinds, 1):
        cluster.add(node_id, kind)
    cluster.configure()
    for node in cluster.nodes.values():
        with node.config.open("a") as properties:
            properties.write(f"broker.rack=rack-{node.id}\n")
        format_by_apache(jvm, cluster, node)
    for node in cluster.nodes.values():
        node.launch()
    cluster.wait_complete(START_SECONDS)
    return cluster


def format_by_apache(jvm: Jvm, cluster: Cluster, node: Node) -> None:
    more: list[str] = []
    if cluster.dynamic:
        voters = (
            f"{n.id}@127.0.0.1:{n.controller_port}:{_uuid(n.id)}" for n in cluster.controllers
        )
        more = ["--initial-controllers", ",".join(voters)]
    command = ("format", "-t", kafka.CLUSTER_ID, "-c", str(node.config), *more)
    jvm.tool(STORAGE_TOOL, *command).ok()


def _uuid(number: int) -> str:
    return f"MkU3OEVBNTcwNTJENDM2{number}Q"


def relaunch_dead(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        if not node.alive:
            node.launch()
    cluster.wait_complete(START_SECONDS)


def create(
    cluster: Cluster, topic: str, assignments: Sequence[Sequence[int]] = (), **configs: str
) -> None:
    """Create a topic, by default with a partition that each node leads, and wait for its ISR."""
    create_on(cluster, topic, assignments or ((1, 2, 3), (2, 3, 1), (3, 1, 2)), **configs)


def bootstrap(cluster: Cluster) -> str:
    return ",".join(node.address for node in cluster.living)


def wait_leader(
    cluster: Cluster, topic: str, index: int, node_id: int, seconds: float = DEADLINE_SECONDS
) -> None:
    eventually(
        lambda: leader_of(cluster, topic, index) == node_id,
        f"{node_id} leads {topic}-{index}",
        seconds,
    )


def wait_all_in_sync(cluster: Cluster, *topics: str) -> None:
    for topic in topics:
        index = 0
        while (partition := describe(cluster, topic, index)) is not None:
            wait_isr(cluster, topic, partition.replica_nodes, index, CLIENT_SECONDS)
            index += 1


# -- replicas


def batches_of(node: Node, topic: str, index: int = 0) -> list[Batch]:
    """Return the batches of a replica, over all its segments."""
    folder = node.replica(topic, index)
    batches: list[Batch] = []
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        for position, header in headers(data):
            batch = data[position : position + header.size]
            batches.append(
                (header.base_offset, header.leader_epoch, header.size, zlib.crc32(batch))
            )
    return batches


def difference(cluster: Cluster, topic: str, index: int, nodes: Iterable[int]) -> str:
    """Return the first difference between replicas; the empty string if there is none."""
    logs = {node: batches_of(cluster.nodes[node], topic, index) for node in nodes}
    (first, expected), *others = logs.items()
    for node, batches in others:
        if batches == expected:
            continue
        pairs = zip(expected, batches, strict=False)
        at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(batches)))
        return (
            f"{topic}-{index} batch {at} of {len(expected)} on {first}: {expected[at : at + 2]}, "
            f"of {len(batches)} on {node}: {batches[at : at + 2]}"
        )
    return "" if expected else f"{topic}-{index} is empty"


def wait_equal(
    cluster: Cluster, topic: str, index: int = 0, nodes: Iterable[int] = NODES
) -> list[Batch]:
    """Wait until the replicas have the same batches, byte by byte; return them."""
    members = tuple(nodes)
    last = ""

    def is_equal() -> bool:
        nonlocal last
        last = difference(cluster, topic, index, members)
        return not last

    try:
        eventually(is_equal, f"equal replicas of {topic}-{index}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None
    return batches_of(cluster.nodes[members[0]], topic, index)


# -- clients


@attrs.define(eq=False)
class Load:
    """A client in a thread of its own, which goes on until :meth:`end`."""

    cluster: Cluster
    topic: str
    bootstrap: str
    partitions: int = PARTITIONS
    value_bytes: int = 0
    """The least size of a value, which spaces fill."""
    progress: int = 0
    """The steps that succeeded."""
    failures: list[str] = attrs.field(factory=list)
    _end: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.failures.append(repr(error))

    def work(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._end.set()

    def wait_more(self, count: int = 10) -> None:
        target = self.progress + count
        eventually(
            lambda: self.progress >= target or self.failures,
            lambda: f"{type(self).__name__} goes on after {self.progress}: {self.cluster.tails()}",
            CLIENT_SECONDS,
        )
        assert not self.failures, self.failures[:3]


@attrs.define(eq=False)
class IdempotentLoad(Load):
    """An idempotent producer with acks=all that numbers the records of each partition."""

    acknowledged: list[list[int]] = attrs.field(factory=lambda: [[] for _ in range(PARTITIONS)])
    session_events: list[SessionEvent] = attrs.field(factory=list)

    def work(self) -> None:
        logger = logging.Logger(self.topic)
        logger.addHandler(SessionRecorder(self.topic, self.session_events.append))
        logger.addHandler(logging.FileHandler(self.cluster.directory / f"to-{self.topic}.log"))
        client = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": CLIENT_SECONDS * 1000,
                "linger.ms": 2,
                "debug": "eos",  # Says why it begins a new session; few lines.
            },
            logger=logger,
        )
        number = 0
        while not self._end.wait(PACE_S):
            for partition in range(self.partitions):
                value = (b"%d" % number).ljust(self.value_bytes)
                client.produce(self.topic, value, partition=partition, on_delivery=self._on_sent)
            client.poll(0)
            number += 1
        client.flush(CLIENT_SECONDS)

    def _on_sent(self, error: object, message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged[message.partition()].append(int(message.value()))
        self.progress += 1

    def check(self) -> None:
        """Check that every acknowledged record is there once and in order.

        A new session, which the producer began for the reason that it logged, may repeat some.
        """
        for index, numbers in enumerate(self.acknowledged[: self.partitions]):
            assert numbers == list(range(len(numbers)))
            values = [int(v) for v in read(self.cluster, self.topic, index, len(numbers))]
            if values == numbers:
                continue
            sessions = self._values_by_session(index, values)
            repeats = [value for value, after in pairwise(values) if after != value + 1]
            story = f"partition {index}: {len(values)} of {len(numbers)}, breaks after"
            story += f" {repeats[:20]} of {[(s, v[0], v[-1]) for s, v in sessions.items()]}"
            assert set(values) == set(numbers), story
            assert all(v == sorted(set(v)) for v in sessions.values()), story
            skipped = [e for e in self.session_events if isinstance(e, SkippedSequence)]
            assert any(s.earlier_error in REFUSED_FOR_NOW for s in skipped), (
                f"{story}, {self.session_events}"
            )

    def _values_by_session(self, index: int, values: Sequence[int]) -> dict[Session, list[int]]:
        node = self.cluster.nodes[leader_of(self.cluster, self.topic, index)]
        sessions = producer_sessions(node.replica(self.topic, index))
        grouped: dict[Session, list[int]] = defaultdict(list)
        for offset, value in enumerate(values):
            grouped[sessions[offset]].append(value)
        return grouped


@attrs.define(eq=False)
class TransactionalLoad(Load):
    """A transactional producer: each transaction writes its number to all partitions."""

    committed: list[int] = attrs.field(factory=list)
    aborted: list[int] = attrs.field(factory=list)

    def work(self) -> None:
        client = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"of-{self.topic}",
                "transaction.timeout.ms": 60_000,
                "topic.metadata.refresh.interval.ms": 500,
                "compression.type": "lz4",
            }
        )
        until_done(lambda: client.init_transactions(10))
        number = 0
        while not self._end.wait(TRANSACTION_PACE_S):
            is_committed = self._write(client, number, is_commit=number % 3 != 1)
            (self.committed if is_committed else self.aborted).append(number)
            self.progress += 1
            number += 1

    def _write(self, client: Producer, number: int, *, is_commit: bool) -> bool:
        """Write a transaction; return whether it was committed."""
        client.begin_transaction()
        try:
            for partition in range(self.partitions):
                client.produce(self.topic, b"%d" % number, partition=partition)
            client.flush(CLIENT_SECONDS)
            if is_commit:
                until_done(lambda: client.commit_transaction(10))
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            is_commit = False
        if not is_commit:
            until_done(lambda: client.abort_transaction(10))
        return is_commit

    def check(self) -> None:
        """Check that each partition has all committed numbers and no aborted one."""
        for index in range(self.partitions):
            values = read(self.cluster, self.topic, index, len(self.committed), committed=True)
            assert [int(value) for value in values] == self.committed


@attrs.define(eq=False)
class GroupLoad(Load):
    """A consumer of a group, which commits after each poll."""

    protocol: str = "classic"
    group: str = attrs.field()
    values: list[set[int]] = attrs.field(factory=lambda: [set() for _ in range(PARTITIONS)])
    """The numbers read from each partition; the members of one group may share them."""

    @group.default
    def _group(self) -> str:
        return f"{self.protocol}-readers-of-{self.topic}"

    def work(self) -> None:
        client = self._client()
        try:
            client.subscribe([self.topic])
            while not self._end.is_set():
                self._poll(client)
        finally:
            client.close()

    def _client(self) -> Consumer:
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.protocol": self.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if self.protocol == "classic":  # Otherwise the broker decides.
            settings["session.timeout.ms"] = 20_000
        return Consumer(settings)

    def _poll(self, client: Consumer) -> None:
        messages = [m for m in client.consume(500, 0.2) if m.error() is None]
        for message in messages:
            self.values[partition_of(message)].add(int(value_of(message)))
        if messages:
            try:
                client.commit(asynchronous=False)
            except KafkaException:
                return  # A rebalance, or a coordinator that moves: a later commit covers this one.
            self.progress += 1

    def check(self, expected: Sequence[Sequence[int]]) -> None:
        """Check that the group continues where it committed and so reads every number."""
        client = self._client()
        targets = [set(numbers) for numbers in expected[: self.partitions]]
        try:
            client.subscribe([self.topic])

            def has_all() -> bool:
                self._poll(client)
                return all(t <= v for t, v in zip(targets, self.values, strict=False))

            eventually(has_all, lambda: f"all records: {self.cluster.tails()}", CLIENT_SECONDS)
        finally:
            client.close()


def until_done(call: Callable[[], object]) -> None:
    """Repeat a transactional call while its error can be retried."""
    while True:
        try:
            call()
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise
        else:
            return


@contextmanager
def running(*loads: Load) -> Iterator[None]:
    """Run these clients during the context."""
    with ExitStack() as stack:
        for load in loads:
            thread = threading.Thread(target=load.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(load.end)
        for load in loads:
            load.wait_more()
        yield
        for load in loads:
            load.wait_more()
    for load in loads:
        assert load.failures == [], load.failures[:3]


def read(
    cluster: Cluster, topic: str, index: int, count: int, *, committed: bool = False
) -> list[bytes]:
    """Read a partition to its end, which has at least this many records; b"" is a tombstone."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    values: list[bytes] = []

    def is_at_end() -> bool:
        messages = client.consume(1000, 0.5)
        values.extend(message.value() or b"" for message in messages if message.error() is None)
        return len(values) >= count and any(map(is_end, messages))

    try:
        client.assign([TopicPartition(topic, index, 0)])
        deadline = time.monotonic() + CLIENT_SECONDS
        while not is_at_end():
            assert time.monotonic() < deadline, (
                f"{len(values)} of {count} records of {topic}-{index}: {cluster.tails()}"
            )
    finally:
        client.close()
    return values
