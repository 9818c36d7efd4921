"""Failovers between three processes, each broker and controller."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

from compat_tests.cluster.nodes import Cluster, Node, stop_in_order
from compat_tests.cluster.topics import created_in_log, creation, topics_at, wait_topics
from compat_tests.harness.wait import eventually
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.testing.wire import Closed

KILLS = int(os.environ.get("KWIRE_KILLS", "5"))
EXISTS = 36
BROKER = 4
"""The config resource type of brokers."""


@pytest.fixture
def cluster(tmp_path: Path, broker_kind: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    for node_id in (1, 2, 3):
        cluster.add(node_id, broker_kind)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def leaderless(node: Node) -> list[str]:
    """Return the topics with a partition that has no leader."""
    with node.client() as client:
        answer = client.call(MetadataRequest(topics=None), 12)
    return [str(t.name) for t in answer.topics if any(p.leader_id < 0 for p in t.partitions)]


def has_topics(node: Node, topics: set[str]) -> bool:
    return topics <= topics_at(node).keys()


def wait_fenced(node: Node, other: Node) -> None:
    """Wait until a broker is not among those that a node gives to clients."""
    eventually(lambda: other.id not in node.brokers_seen(), f"node {other.id} is fenced")


def wait_leaderless(node: Node, *topics: str) -> None:
    """Wait until exactly these topics have a partition without a leader."""
    eventually(lambda: leaderless(node) == [*topics], f"no leader of {topics} at node {node.id}")


@attrs.define(eq=False)
class Load:
    """A client that creates topics through one node after the other without pauses."""

    cluster: Cluster
    acknowledged: list[tuple[float, str]] = attrs.field(factory=list)
    refused: list[tuple[str, int]] = attrs.field(factory=list)
    answered: list[float] = attrs.field(factory=list)
    """The times of all answers, of refusals too, in seconds of the monotonic clock."""
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *how: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(60)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            alive = [node for node in self.cluster.brokers if node.alive]
            if not alive:
                continue
            self._create(alive[number % len(alive)], f"load-{number}")

    def _create(self, node: Node, name: str) -> None:
        try:
            with node.client() as client:
                (result,) = client.call(creation(name), 7).topics
        except (OSError, Closed):
            time.sleep(0.01)
            return
        self.answered.append(time.monotonic())
        if result.error_code:
            self.refused.append((name, result.error_code))
        else:
            self.acknowledged.append((time.monotonic(), name))

    def after(self, moment: float) -> float | None:
        """Return the seconds from a moment to the next acknowledged creation; None without one."""
        later = [at for at, _ in list(self.acknowledged) if at > moment]
        return later[0] - moment if later else None


def test_topics_through_every_node(cluster):
    for node in cluster.brokers:
        with node.client() as client:
            (result,) = client.call(creation(f"by-{node.id}", partitions=6), 7).topics
        assert (result.error_code, result.num_partitions) == (0, 6)
    partitions = {f"by-{node.id}": 6 for node in cluster.brokers}
    for node in cluster.brokers:
        wait_topics(node, partitions)
    with cluster.brokers[0].client() as client:
        answer = client.call(MetadataRequest(topics=None), 12)
    for topic in answer.topics:
        assert {p.leader_id for p in topic.partitions} == {1, 2, 3}


def test_settings_of_another_broker(cluster):
    """Every broker accepts its own id and refuses another's, whichever node is the controller."""
    active = cluster.active().id
    for node in cluster.brokers:
        other = next(n for n in cluster.brokers if n.id not in (node.id, active))
        names = [str(other.id), str(node.id), "", "x"]
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        setting = resource.AlterableConfig(
            name="log.retention.ms", config_operation=0, value="86400000"
        )
        request = IncrementalAlterConfigsRequest(
            resources=[
                resource(resource_type=BROKER, resource_name=name, configs=[setting])
                for name in names
            ],
            validate_only=False,
        )
        with node.client() as client:
            results = client.call(request, 1).responses
        assert [result.resource_name for result in results] == names
        assert [(result.error_code, result.error_message) for result in results] == [
            (42, f"Unexpected broker id, expected {node.id}, but received {other.id}"),
            (0, None),
            (0, None),
            (42, "Node id must be an integer, but it is: x"),
        ]


@pytest.mark.long
def test_active_controller_killed_again_and_again(cluster, capsys):
    """No acknowledged creation is lost, none is applied twice, and killed nodes rejoin."""
    gaps = []
    with Load(cluster) as load:
        eventually(lambda: load.acknowledged, "the first topic")
        for _ in range(KILLS):
            victim = cluster.active()
            victim.kill()
            killed_at = time.monotonic()
            gaps.append(eventually(partial(load.after, killed_at), "a new controller"))
            victim.launch()
            cluster.wait_complete()
    acknowledged = {name for _, name in load.acknowledged}
    for node in cluster.brokers:
        eventually(partial(has_topics, node, acknowledged), "nothing is lost")
        wait_leaderless(node)
    assert {code for _, code in load.refused} <= {EXISTS}
    with capsys.disabled():
        print(
            f"\nwithout an active controller: median {statistics.median(gaps):.2f} s, worst "
            f"{max(gaps):.2f} s of {len(gaps)}; {len(load.acknowledged)} topics acknowledged, "
            f"{len(load.refused)} answered as existing after a repetition"
        )
    cluster.close()
    if cluster.nodes[1].kind == "kwire":
        for node in cluster.nodes.values():
            assert set(created_in_log(node).values()) == {1}


def test_active_controller_stops_in_order(cluster, capsys):
    """After EndQuorumEpoch the others elect at once, without waiting for a fetch timeout."""
    victim = cluster.active()
    with Load(cluster) as load:
        eventually(lambda: load.acknowledged, "the first topic")
        stop_in_order(victim)
        count = len(load.answered)
        eventually(lambda: len(load.answered) > count, "the others answer")
    times = load.answered
    longest = max(later - earlier for earlier, later in pairwise(times))
    with capsys.disabled():
        print(f"\na stop in order: at most {longest:.2f} s between two answers")
    assert cluster.active().id != victim.id
    victim.launch()
    cluster.wait_complete()


def test_a_node_that_waits_for_others_can_be_stopped(cluster):
    """A node without a quorum stops in time and marks no clean shutdown of its unread logs."""
    for node in cluster.brokers:
        node.kill()
    alone = cluster.nodes[1]
    alone.launch()
    eventually(alone.answers, "it answers")
    began = time.monotonic()
    assert alone.stop() in (0, 143)
    assert time.monotonic() - began < 30
    assert not (alone.directory / "data" / ".kafka_cleanshutdown").exists()
    for node in cluster.brokers:
        node.launch()
    cluster.wait_complete()


def test_active_controller_paused(cluster):
    """A hanging controller blocks no other node: connections to it close when another leads."""
    paused = cluster.active()
    assert paused.process is not None
    paused.process.send_signal(signal.SIGSTOP)
    try:
        others = [node for node in cluster.brokers if node is not paused]
        for node in others:
            # Apache Kafka's brokers wait up to a minute for the former controller.
            with node.client(120 if node.kind == "kafka" else 30) as client:
                (result,) = client.call(creation(f"by-{node.id}"), 7).topics
            assert result.error_code == 0
    finally:
        paused.process.send_signal(signal.SIGCONT)
    with paused.client() as client:
        (result,) = client.call(creation("by-the-paused"), 7).topics
    assert result.error_code == 0
    partitions = {"by-the-paused": 3, **{f"by-{node.id}": 3 for node in others}}
    for node in cluster.brokers:
        wait_topics(node, partitions)


def test_a_silent_broker_is_fenced(tmp_path, broker_kind):
    """A dead broker's partitions have no leader after its session timeout, until it returns."""
    cluster = Cluster(
        tmp_path,
        {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"},
    )
    for node_id in (1, 2, 3):
        cluster.add(node_id, broker_kind)
    try:
        cluster.start()
        victim = next(node for node in cluster.brokers if node is not cluster.active())
        living = [node for node in cluster.brokers if node is not victim]
        with living[0].client() as client:
            client.call(creation("t", partitions=6), 7)
        eventually(lambda: topics_at(living[0]) == {"t": 6}, "the topic")
        wait_leaderless(living[0])
        victim.kill()
        for node in living:
            wait_fenced(node, victim)
            wait_leaderless(node, "t")
        victim.launch()
        cluster.wait_complete()
        for node in cluster.brokers:
            wait_leaderless(node)
    finally:
        cluster.close()
