"""The transaction coordinator is killed in each state; the next one finishes what it decided.

Each broker has a proxy in front of it, so that markers can be held on their way: the coordinator is
then in PrepareCommit or PrepareAbort for as long as the test likes.  Invariants 59 and 61;
`tests/mutations/late_requests.py` has mistakes of a coordinator that this test catches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.cluster.coordinators import coordinator
from compat_tests.cluster.nodes import COMBINED, REPLICATED, Cluster, Node
from compat_tests.cluster.topics import NODES, create_on, wait_isr
from compat_tests.confluent_kafka.clients import partition_of, value_of
from compat_tests.harness.frames import FrameProxy
from compat_tests.harness.wait import eventually
from kwire.codec.messages.describe_transactions import DescribeTransactionsRequest
from kwire.testing.wire import Closed

PARTITIONS = 2
WRITE_TXN_MARKERS = 27
DECIDED = ("Empty", "CompleteCommit", "CompleteAbort")
"""The states in which the next coordinator has nothing to finish."""
STATES = (
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    *(pytest.param(name, marks=pytest.mark.long) for name in DECIDED),
)


@attrs.define(eq=False)
class ProxiedCluster(Cluster):
    """A cluster whose brokers are reached through proxies."""

    proxies: dict[int, FrameProxy] = attrs.field(factory=dict)

    def add(self, node_id: int, kind: str = "kwire", roles: str = COMBINED) -> Node:
        node = super().add(node_id, kind, roles)
        self.proxies[node_id] = FrameProxy(node.port)
        return node

    def properties(self, node: Node) -> dict[str, str]:
        address = f"PLAINTEXT://{node.host}:{self.proxies[node.id].port}"
        return {**super().properties(node), "advertised.listeners": address}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{self.proxies[node.id].port}" for node in self.brokers)

    def close(self) -> None:
        super().close()
        for proxy in self.proxies.values():
            proxy.close()


@pytest.fixture
def cluster(tmp_path: Path, broker_kind: str) -> Iterator[ProxiedCluster]:
    settings = {
        **REPLICATED,
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "transaction.state.log.num.partitions": "1",
    }
    cluster = ProxiedCluster(tmp_path, settings)
    for node_id in NODES:
        cluster.add(node_id, broker_kind)
    try:
        cluster.start(features=())
        yield cluster
    finally:
        cluster.close()


def create(cluster: Cluster, topic: str, last: int) -> None:
    """Create a topic whose partitions the other nodes than ``last`` lead."""
    first, second = (node for node in NODES if node != last)
    create_on(cluster, topic, [(first, second, last), (second, first, last)])


def state_of(cluster: Cluster, name: str) -> str:
    """Return the state of a transactional id by its coordinator; empty if that has moved."""
    request = DescribeTransactionsRequest(transactional_ids=[name])
    try:
        with coordinator(cluster, name).client() as client:
            (state,) = client.call(request, 0).transaction_states
    except (OSError, Closed):
        return ""
    return "" if state.error_code else state.transaction_state


def write(producer: Producer, topic: str, value: str) -> None:
    for partition in range(PARTITIONS):
        producer.produce(topic, value.encode(), partition=partition)
    producer.flush(60)


def bring_into(cluster: ProxiedCluster, producer: Producer, topic: str, state: str) -> None:
    """Bring a new producer's coordinator into a state; its record has the state as its value."""
    if state == "Empty":
        return
    producer.begin_transaction()
    write(producer, topic, state)
    if state.startswith("Prepare"):
        for proxy in cluster.proxies.values():
            proxy.hold(WRITE_TXN_MARKERS)
    if state.endswith("Commit"):
        producer.commit_transaction(60)
    elif state.endswith("Abort"):
        producer.abort_transaction(60)


def end_offsets(cluster: Cluster, topic: str, isolation: str) -> list[int]:
    settings = {"group.id": "none", "isolation.level": isolation}
    client = Consumer({"bootstrap.servers": cluster.bootstrap, **settings})
    try:
        return [
            client.get_watermark_offsets(TopicPartition(topic, partition), 30)[1]
            for partition in range(PARTITIONS)
        ]
    finally:
        client.close()


def read(cluster: Cluster, topic: str) -> dict[int, list[str]]:
    """Return the values of committed records up to the ends of the partitions."""
    client = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    ends = end_offsets(cluster, topic, "read_uncommitted")
    values: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    partitions = [TopicPartition(topic, partition, 0) for partition in values]

    def is_at_end() -> bool:
        for message in client.consume(100, 0.2):
            assert message.error() is None, message.error()
            values[partition_of(message)].append(value_of(message).decode())
        return [place.offset for place in client.position(partitions)] == ends

    try:
        client.assign(partitions)
        eventually(is_at_end, f"the ends {ends} of {topic}")
    finally:
        client.close()
    return values


def complete_state(state: str) -> str:
    """Return the state after the end of a transaction; the test commits an open one."""
    return "CompleteCommit" if state == "Ongoing" else state.replace("Prepare", "Complete")


@pytest.mark.parametrize("state", STATES)
def test_next_coordinator_finishes_what_a_killed_one_decided(
    cluster: ProxiedCluster, state: str
) -> None:
    """The producer goes on afterwards, as Apache Kafka's does."""
    killed = coordinator(cluster, "x")
    create(cluster, "t", killed.id)
    settings = {"transactional.id": "x", "topic.metadata.refresh.interval.ms": 500}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    producer.init_transactions(60)
    bring_into(cluster, producer, "t", state)
    eventually(lambda: state_of(cluster, "x") == state, f"the state {state}")
    ends = end_offsets(cluster, "t", "read_uncommitted")
    killed.kill()
    if state.startswith("Prepare"):
        eventually(
            lambda: coordinator(cluster, "x") is not killed,
            lambda: f"another coordinator: {cluster.tails()}",
        )
        for proxy in cluster.proxies.values():
            proxy.release_all()  # The markers of the killed coordinator arrive as well.
    committed = [state] if state.endswith("Commit") else []
    if state == "Ongoing":
        write(producer, "t", "more")
        producer.commit_transaction(60)
        committed = [state, "more"]
    if state != "Empty":
        eventually(lambda: state_of(cluster, "x") == complete_state(state), "the end")
        after = end_offsets(cluster, "t", "read_uncommitted")
        eventually(
            lambda: end_offsets(cluster, "t", "read_committed") == after, f"all is decided: {after}"
        )
        if state.startswith("Complete"):
            assert after == ends, "the next coordinator writes no further markers"
    producer.begin_transaction()
    write(producer, "t", "next")
    producer.commit_transaction(60)
    eventually(lambda: state_of(cluster, "x") == "CompleteCommit", "the next commit")
    assert read(cluster, "t") == {key: [*committed, "next"] for key in range(PARTITIONS)}
    killed.launch()
    wait_isr(cluster, "t", NODES)
