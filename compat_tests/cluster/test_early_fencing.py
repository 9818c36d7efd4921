"""A broker whose process ends is fenced at once, long before its session ends.

Sessions last ten minutes here, and no wait is as long: what these tests wait for can only have come
from the end of the process. Apache Kafka waits for the session, so it is not asked.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from compat_tests.cluster.nodes import BROKER, CONTROLLER, Cluster
from compat_tests.cluster.topics import create, describe, isr, leader, read
from compat_tests.harness.wait import eventually

SESSION_S = 600
SETTINGS = {
    "offsets_topic_replication_factor": "3",
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "broker_session_timeout_ms": str(SESSION_S * 1000),
}
SOON_S = SESSION_S / 3


@pytest.fixture
def cluster(make: Callable[..., Cluster], broker_kind: str) -> Cluster:
    if broker_kind != "kwire":
        pytest.skip("Apache Kafka fences a broker when its session ends")
    cluster = make(3, **SETTINGS)
    cluster.start()
    return cluster


def produce_one(client: Producer, topic: str, value: int) -> None:
    """Produce a record and wait for its acknowledgement."""
    errors: list[object] = []
    client.produce(topic, b"%d" % value, on_delivery=lambda error, _: errors.append(error))
    assert client.flush(SOON_S) == 0, "no acknowledgement before the session's end"
    assert errors == [None]


def test_producer_goes_on_long_before_the_session_of_a_killed_leader_ends(
    cluster: Cluster,
) -> None:
    create(cluster, "t")
    client = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(3):
        produce_one(client, "t", number)
    victim = leader(cluster, "t")
    victim.kill()
    produce_one(client, "t", 3)
    eventually(lambda: victim.id not in isr(cluster, "t"), "a smaller ISR", SOON_S)
    assert leader(cluster, "t").id != victim.id
    assert read(cluster, "t", 4) == [0, 1, 2, 3]
    victim.launch()
    eventually(
        lambda: victim.id in isr(cluster, "t"), lambda: f"the whole ISR: {cluster.tails()}", SOON_S
    )


def test_producer_goes_on_after_the_death_of_the_active_controllers_node(cluster: Cluster) -> None:
    """The next active controller fences the former one's broker at once."""
    active = cluster.active()
    create(cluster, "t", partitions=3)
    client = Producer({"bootstrap.servers": cluster.bootstrap})
    active.kill()

    def is_led_elsewhere() -> bool:
        partitions = [describe(cluster, "t", index) for index in range(3)]
        return all(p is not None and p.leader_id not in (-1, active.id) for p in partitions)

    eventually(is_led_elsewhere, lambda: f"leaders elsewhere: {cluster.tails()}", SOON_S)
    for number in range(9):
        produce_one(client, "t", number)


def test_killed_follower_does_not_hold_up_the_producer(cluster: Cluster) -> None:
    create(cluster, "t")
    client = Producer({"bootstrap.servers": cluster.bootstrap})
    produce_one(client, "t", 0)
    first = leader(cluster, "t").id
    victim = next(node for node in cluster.brokers if node.id != first)
    victim.kill()
    produce_one(client, "t", 1)
    eventually(lambda: victim.id not in isr(cluster, "t"), "a smaller ISR", SOON_S)


def test_paused_broker_is_not_taken_for_dead(cluster: Cluster) -> None:
    """A paused broker is fenced when its session ends: its host still accepts connections."""
    create(cluster, "t")
    active = cluster.active()
    paused = next(node for node in cluster.brokers[1:] if node is not active)
    assert paused.process is not None
    os.kill(paused.process.pid, signal.SIGSTOP)
    try:
        time.sleep(3)  # Several times as long as an ended process takes.
        assert paused.id in isr(cluster, "t")
    finally:
        os.kill(paused.process.pid, signal.SIGCONT)


def test_early_fencing_can_be_turned_off(make: Callable[..., Cluster], broker_kind: str) -> None:
    if broker_kind != "kwire":
        pytest.skip("a setting of kwire")
    cluster = make(3, broker_early_fencing_enable="false", **SETTINGS)
    cluster.start()
    create(cluster, "t")
    victim = next(n for n in cluster.brokers if n is not cluster.active())
    victim.kill()
    time.sleep(3)
    assert victim.id in isr(cluster, "t")


def test_broker_without_a_controller_is_fenced_early(
    make: Callable[..., Cluster], broker_kind: str
) -> None:
    if broker_kind != "kwire":
        pytest.skip("Apache Kafka fences a broker when its session ends")
    cluster = make(0, **SETTINGS)
    cluster.add(10, roles=CONTROLLER)
    for node_id in (1, 2, 3):
        cluster.add(node_id, roles=BROKER)
    cluster.start()
    create(cluster, "t")
    client = Producer({"bootstrap.servers": cluster.bootstrap})
    produce_one(client, "t", 0)
    leader(cluster, "t").kill()
    produce_one(client, "t", 1)
    assert len(cluster.living) == 2
    assert read(cluster, "t", 2) == [0, 1]
