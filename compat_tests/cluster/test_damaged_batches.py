"""A replica with flipped bits, on a cluster whose nodes scrub their logs every second.

The bits are flipped in closed segments, in the file itself, while a producer with acks=all keeps
running. Apache Kafka does not look for damage, so it is only asked in a cluster of both kinds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.cluster.topics import (
    NODES,
    create_on,
    isr,
    leader,
    leader_of,
    producer,
    read,
    segments,
    wait_isr,
)
from compat_tests.confluent_kafka.clients import value_of
from compat_tests.harness.wait import eventually
from kwire.errors import CorruptMessage
from kwire.records.header import BatchHeader, headers

TOPIC = "t"
SEGMENT_BYTES = 1 << 20
VALUE_BYTES = 4000
BYTES = {"length": 10, "epoch": 15, "checksum": 19, "attributes": 22, "records": 90}
"""A byte in each part of a batch, by the part's name."""
SETTINGS = {
    "offsets_topic_replication_factor": "3",
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "auto_leader_rebalance_enable": "false",
    "broker_session_timeout_ms": "60000",  # No node leaves an ISR because the machine is busy.
    "replica_lag_time_max_ms": "60000",
    "kwire_scrub_interval_ms": "1000",
    "kwire_scrub_bytes_per_second": str(1 << 30),
}


@pytest.fixture
def cluster(make: Callable[..., Cluster], broker_kind: str) -> Cluster:
    if broker_kind != "kwire":
        pytest.skip("Apache Kafka does not scrub its logs")
    cluster = make(3, **SETTINGS)
    cluster.start()
    return cluster


@pytest.fixture
def mixed_cluster(make: Callable[..., Cluster], broker_kind: str) -> Cluster:
    """Start a node of kwire and two of Apache Kafka."""
    if broker_kind != "kwire":
        pytest.skip("this cluster has nodes of both kinds anyway")
    cluster = make(1, **SETTINGS)
    for node_id in (2, 3):
        cluster.add(node_id, "kafka")
    cluster.start()
    return cluster


@contextmanager
def load(cluster: Cluster) -> Iterator[list[int]]:
    """Produce in the background; yield the numbers that were acknowledged, in order."""
    acknowledged: list[int] = []
    errors: list[str] = []
    ends = threading.Event()

    def on_delivery(error: KafkaError | None, message) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            acknowledged.append(int(message.value()))

    def work() -> None:
        client = producer(cluster, acks="all", **{"batch.size": 16_000})
        number = 0
        while not ends.wait(0.002):
            client.produce(TOPIC, b"%0*d" % (VALUE_BYTES, number), on_delivery=on_delivery)
            client.poll(0)
            number += 1
        assert client.flush(90) == 0

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield acknowledged
    finally:
        ends.set()
        thread.join(120)
    assert not errors


def files(node: Node) -> list[Path]:
    return sorted(node.replica(TOPIC).glob("*.log"))


def wait_segments(cluster: Cluster, count: int) -> None:
    """Wait until each node has this many segments."""
    eventually(
        lambda: all(len(files(node)) >= count for node in cluster.living),
        lambda: f"{count} segments: {cluster.tails()}",
    )


def flip(file: Path, content: bytes, number: int, at: int) -> BatchHeader:
    """Flip a bit of a batch's byte in a file of this content; return the batch's header."""
    position, header = list(headers(content))[number]
    with file.open("r+b") as opened:
        opened.seek(position + at)
        byte = opened.read(1)[0]
        opened.seek(position + at)
        opened.write(bytes([byte ^ 4]))
    return header


def wait_repaired(cluster: Cluster, node: Node, before: dict[Path, bytes]) -> None:
    """Wait until the files are as they were before the damage."""
    eventually(
        lambda: all(path.read_bytes() == content for path, content in before.items()),
        lambda: f"{node.id} repairs its log: {cluster.tails()}",
    )


@pytest.mark.parametrize("role", [pytest.param("follower", marks=pytest.mark.long), "leader"])
def test_damaged_replica_repairs_itself_and_stays_in_sync(cluster: Cluster, role: str) -> None:
    """Invariants 1, 22, 23 and 80: nothing acknowledged is lost, and all replicas are equal."""
    create_on(cluster, TOPIC, [NODES], segment_bytes=str(SEGMENT_BYTES))
    leading = leader(cluster, TOPIC)
    victim = leading
    if role == "follower":
        victim = next(node for node in cluster.living if node is not leading)
    with load(cluster) as acknowledged:
        wait_segments(cluster, 4)
        damaged = files(victim)[:2]
        before = {path: path.read_bytes() for path in damaged}
        for number, at in enumerate(BYTES.values()):
            path = damaged[number % 2]
            flip(path, before[path], 5 * number, at)
        wait_repaired(cluster, victim, before)
        eventually(  # It is logged after the file has been written.
            lambda: "restored damaged batches" in victim.read_log(),
            lambda: f"the repair is logged: {cluster.tails()}",
        )
        wait_segments(cluster, 6)
    assert isr(cluster, TOPIC) == set(NODES)
    assert leader_of(cluster, TOPIC) == leading.id
    eventually(
        lambda: len({segments(node, TOPIC) for node in cluster.living}) == 1,
        lambda: f"equal replicas: {cluster.tails()}",
    )
    assert read(cluster, TOPIC, len(acknowledged)) == acknowledged
    assert victim.stop() == 0


def test_batch_without_another_replica_is_an_error_and_the_rest_is_read(cluster: Cluster) -> None:
    """Invariants 7 and 80: consumers learn of the damage, and read what is around it."""
    create_on(cluster, TOPIC, [[2]], segment_bytes=str(SEGMENT_BYTES), min_insync_replicas="1")
    victim = cluster.nodes[2]
    with load(cluster) as acknowledged:
        eventually(lambda: len(files(victim)) >= 3, lambda: f"segments: {cluster.tails()}")
    header = flip(files(victim)[0], files(victim)[0].read_bytes(), 7, BYTES["records"])
    eventually(
        lambda: f"damaged batch file={files(victim)[0]}" in victim.read_log(),
        lambda: f"the damage is found: {cluster.tails()}",
    )
    intact = [n for n in acknowledged if not header.base_offset <= n <= header.last_offset]
    values, errors = read_around(cluster, header, len(intact))
    assert values == intact
    assert CorruptMessage.code in errors


def read_around(cluster: Cluster, header: BatchHeader, count: int) -> tuple[list[int], list[int]]:
    """Read all records as a consumer that seeks past an error; return values and error codes."""
    client = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "around"})
    values, errors = list[int](), list[int]()

    def is_done() -> bool:
        for message in client.consume(1000, 1.0):
            error = message.error()
            if error is None:
                values.append(int(value_of(message)))
            else:
                errors.append(error.code())
                client.seek(TopicPartition(TOPIC, 0, header.next_offset))
        return len(values) >= count

    try:
        client.assign([TopicPartition(TOPIC, 0, 0)])
        eventually(is_done, lambda: f"{count} records, not {len(values)}: {errors}")
    finally:
        client.close()
    return values, errors


def test_damage_is_repaired_after_the_only_other_replica_returns(cluster: Cluster) -> None:
    create_on(cluster, TOPIC, [[1, 2]], segment_bytes=str(SEGMENT_BYTES), min_insync_replicas="1")
    with load(cluster) as acknowledged:
        eventually(
            lambda: all(len(files(cluster.nodes[n])) >= 3 for n in (1, 2)),
            lambda: f"segments: {cluster.tails()}",
        )
    wait_isr(cluster, TOPIC, (1, 2))
    victim, other = cluster.nodes[1], cluster.nodes[2]
    other.kill()
    path = files(victim)[0]
    before = {path: path.read_bytes()}
    flip(path, before[path], 3, BYTES["records"])
    eventually(
        lambda: "cannot repair" in victim.read_log(),
        lambda: f"the damage is found: {cluster.tails()}",
    )
    other.launch()
    wait_repaired(cluster, victim, before)
    assert read(cluster, TOPIC, len(acknowledged)) == acknowledged


@pytest.mark.long
@pytest.mark.parametrize("leader_id", [1, 2])
@pytest.mark.with_apache
def test_damaged_replica_repairs_itself_from_apache_kafka(
    mixed_cluster: Cluster, leader_id: int
) -> None:
    """Leaders and followers of Apache Kafka supply the bytes, so kwire may be either."""
    cluster = mixed_cluster
    replicas = [leader_id, *(n for n in NODES if n != leader_id)]
    create_on(cluster, TOPIC, [replicas], segment_bytes=str(SEGMENT_BYTES))
    victim = cluster.nodes[1]
    with load(cluster) as acknowledged:
        wait_segments(cluster, 3)
        path = files(victim)[0]
        before = {path: path.read_bytes()}
        for number, at in enumerate(BYTES.values()):
            flip(path, before[path], 5 * number, at)
        wait_repaired(cluster, victim, before)
    assert isr(cluster, TOPIC) == set(NODES)
    assert leader_of(cluster, TOPIC) == leader_id
    assert read(cluster, TOPIC, len(acknowledged)) == acknowledged
