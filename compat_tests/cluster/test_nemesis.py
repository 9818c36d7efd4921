"""Random faults on three nodes, each broker and controller, while clients change topics.

Each client creates, grows, configures and deletes its own topics, one request after the other,
through random nodes. In the end, acknowledged changes must hold on every node; unanswered ones
may have happened, even later. A topic that a node has removed does not come back there
(invariants 48 and 49). ``KWIRE_ROUNDS`` sets the number of faults, ``KWIRE_SEED`` the seed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.cluster.topics import created_in_log, creation, topics_at, wait_known
from compat_tests.harness.wait import eventually
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.testing.wire import Closed

ROUNDS = int(os.environ.get("KWIRE_ROUNDS", "5"))
SEED = int(os.environ.get("KWIRE_SEED", "1"))
CLIENTS = 3
NONE, EXISTS, UNKNOWN_TOPIC, INVALID_PARTITIONS = 0, 36, 3, 37
UNDECIDED = {7, 8, 38, 41}
"""Error codes after which a change may still happen.

They mean: timed out, no broker, all brokers fenced, no controller.
"""
TOPIC_RESOURCE, SET = 2, 0
LAST = "last"
State = tuple[dict[str, int], dict[str, int | None]]
SETTING = "retention.ms"


@attrs.define
class Register:
    """The possible values of a setting: the last acknowledged one, and all unanswered ones."""

    acknowledged: Any
    unanswered: set[Any] = attrs.field(factory=set)

    def may_be(self, value: Any) -> bool:
        return value == self.acknowledged or value in self.unanswered


@attrs.define
class Topic:
    """The possible states of one topic, by its client's answers."""

    exists: Register = attrs.field(factory=lambda: Register(False))
    partitions: Register = attrs.field(factory=lambda: Register(1))
    retention: Register = attrs.field(factory=lambda: Register(None))


class Outcome(Enum):
    """The outcome of a change, as the client that requested it sees it."""

    ACKNOWLEDGED = "acknowledged"
    """The change is in place, or an earlier one that had no answer explains why it is not."""
    UNDECIDED = "undecided"
    """By its error code the change may still happen."""
    UNANSWERED = "unanswered"
    REFUSED = "refused"
    """No fault explains its error code."""


@attrs.define(eq=False)
class Client:
    """A client that changes its own topics, which no other client uses."""

    number: int
    cluster: Cluster
    random: Random
    topics: dict[str, Topic] = attrs.field(factory=dict)
    outcomes: dict[Outcome, Counter[str]] = attrs.field(
        factory=lambda: {outcome: Counter() for outcome in Outcome}
    )
    """The number of requests by their outcome and kind."""
    errors: list[tuple[str, str, int]] = attrs.field(factory=list)
    """The kind, topic and error code of each answer that no fault explains."""

    def step(self, number: int) -> None:
        living = [name for name, topic in self.topics.items() if topic.exists.acknowledged]
        dice = self.random.random()
        if not living or dice < 0.4:
            self._create(f"t-{self.number}-{number}")
            return
        name = self.random.choice(living)
        if dice < 0.6:
            self._set_retention(name, 60_000 + number)
        elif dice < 0.8:
            self._grow(name)
        else:
            self._delete(name)

    def _call(self, request: Any, version: int) -> Any:
        """Send a request to a random node; return its answer, or None if there is none."""
        node = self.random.choice(self.cluster.brokers)
        try:
            with node.client(timeout_s=20.0) as client:
                return client.call(request, version)
        except (OSError, Closed):
            time.sleep(0.02)
            return None

    def _is_acknowledged(self, kind: str, name: str, code: int | None, success: set[int]) -> bool:
        """Whether the change has happened, by the error code of its answer; counts the outcome."""
        if code is None:
            outcome = Outcome.UNANSWERED
        elif code in success:
            outcome = Outcome.ACKNOWLEDGED
        elif code in UNDECIDED:
            outcome = Outcome.UNDECIDED
        else:
            outcome = Outcome.REFUSED
            self.errors.append((kind, name, code))
        self.outcomes[outcome][kind] += 1
        return outcome is Outcome.ACKNOWLEDGED

    def _create(self, name: str) -> None:
        topic = self.topics.setdefault(name, Topic())
        topic.exists.unanswered.add(True)
        answer = self._call(creation(name, partitions=1), 7)
        code = answer.topics[0].error_code if answer else None
        if self._is_acknowledged("create", name, code, {NONE, EXISTS}):
            topic.exists = Register(True)

    def _delete(self, name: str) -> None:
        topic = self.topics[name]
        topic.exists.unanswered.add(False)
        state = DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(topics=[state(name=name)], timeout_ms=15_000)
        answer = self._call(request, 6)
        code = answer.responses[0].error_code if answer else None
        if self._is_acknowledged("delete", name, code, {NONE, UNKNOWN_TOPIC}):
            topic.exists = Register(False)

    def _grow(self, name: str) -> None:
        topic = self.topics[name]
        count = max(topic.partitions.acknowledged, *topic.partitions.unanswered, 1) + 1
        topic.partitions.unanswered.add(count)
        kind = CreatePartitionsRequest.CreatePartitionsTopic
        request = CreatePartitionsRequest(
            topics=[kind(name=name, count=count, assignments=None)],
            timeout_ms=15_000,
            validate_only=False,
        )
        answer = self._call(request, 3)
        code = answer.results[0].error_code if answer else None
        success = {NONE, INVALID_PARTITIONS}  # The node may repeat a request after a failover.
        if topic.exists.unanswered:  # An unanswered deletion may have happened.
            success.add(UNKNOWN_TOPIC)
        if self._is_acknowledged("grow", name, code, success) and code == NONE:
            topic.partitions.acknowledged = count

    def _set_retention(self, name: str, value: int) -> None:
        topic = self.topics[name]
        topic.retention.unanswered.add(value)
        kind = IncrementalAlterConfigsRequest.AlterConfigsResource
        setting = kind.AlterableConfig(name=SETTING, config_operation=SET, value=str(value))
        resource = kind(resource_type=TOPIC_RESOURCE, resource_name=name, configs=[setting])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = self._call(request, 1)
        code = answer.responses[0].error_code if answer else None
        success = {NONE, UNKNOWN_TOPIC} if topic.exists.unanswered else {NONE}
        if self._is_acknowledged("set", name, code, success) and code == NONE:
            topic.retention.acknowledged = value
            topic.retention.unanswered.discard(value)


@attrs.define(eq=False)
class Clients:
    """All clients, each in a thread of its own until the context ends."""

    cluster: Cluster
    seed: int
    clients: list[Client] = attrs.field(factory=list)
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _threads: list[threading.Thread] = attrs.field(factory=list)

    def __enter__(self) -> Clients:
        for number in range(CLIENTS):
            client = Client(number, self.cluster, Random(self.seed * 100 + number))
            self.clients.append(client)
            thread = threading.Thread(target=self._run, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *how: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, client: Client) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            client.step(number)

    def acknowledged_count(self) -> int:
        """Return the number of changes that the cluster has acknowledged so far."""
        return self.outcomes()[Outcome.ACKNOWLEDGED].total()

    def wait_acknowledged(self, count: int) -> None:
        """Wait until the cluster has acknowledged more changes than this."""
        eventually(lambda: self.acknowledged_count() > count, f"over {count} acknowledged changes")

    def outcomes(self) -> dict[Outcome, Counter[str]]:
        """Return the number of all clients' requests by outcome and kind."""
        return {
            outcome: sum((client.outcomes[outcome] for client in self.clients), Counter())
            for outcome in Outcome
        }

    @property
    def topics(self) -> dict[str, Topic]:
        return {name: topic for client in self.clients for name, topic in client.topics.items()}


@attrs.define(eq=False)
class Reader:
    """A client that lists one node's topics repeatedly; names of topics are never reused."""

    node: Node
    answer_count: int = 0
    returned: set[str] = attrs.field(factory=set)
    """Topics that disappeared from this node and then came back."""
    _listed: set[str] = attrs.field(factory=set)
    """All topics that were ever listed."""
    _removed: set[str] = attrs.field(factory=set)
    """Topics that were listed before, and then were not."""
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Reader:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *how: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with suppress(OSError, Closed):
                self._on_listing(set(topics_at(self.node)))

    def _on_listing(self, topics: set[str]) -> None:
        self.answer_count += 1
        self.returned |= topics & self._removed
        self._removed |= self._listed - topics
        self._listed |= topics


@attrs.define(eq=False)
class Nemesis:
    """A source of random faults, one after the other; each one ends."""

    cluster: Cluster
    random: Random
    faults: list[str] = attrs.field(factory=list)

    def strike(self) -> None:
        fault = self.random.choice([self._kill, self._kill_two, self._stop, self._pause])
        fault()

    def _choose(self, count: int) -> list[Node]:
        return self.random.sample(self.cluster.brokers, count)

    def _kill(self) -> None:
        self._bring_down(self._choose(1), Node.kill)

    def _kill_two(self) -> None:
        """Kill two nodes, which leaves no majority until one is back."""
        self._bring_down(self._choose(2), Node.kill)

    def _stop(self) -> None:
        self._bring_down(self._choose(1), Node.stop)

    def _bring_down(self, nodes: list[Node], how: Any) -> None:
        self.faults.append(f"{how.__name__} {[node.id for node in nodes]}")
        for node in nodes:
            how(node)
        time.sleep(2 * self.random.random())
        for node in nodes:
            node.launch()

    def _pause(self) -> None:
        (node,) = self._choose(1)
        self.faults.append(f"pause {node.id}")
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(5 * self.random.random())
        node.process.send_signal(signal.SIGCONT)


@pytest.fixture
def cluster(tmp_path: Path, broker_kind: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    for node_id in (1, 2, 3):
        cluster.add(node_id, broker_kind)
    try:
        cluster.start()
        yield cluster
    finally:
        for node in cluster.nodes.values():
            with suppress(OSError):
                if node.process is not None:
                    node.process.send_signal(signal.SIGCONT)
        cluster.close()


def retentions_at(node: Node, names: list[str]) -> dict[str, int | None] | None:
    """Return each topic's own setting by one node, None for a topic without one.

    Return None if one of the topics is missing, because a late change has deleted it.
    """
    kind = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        kind(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=[SETTING])
        for name in names
    ]
    with node.client() as client:
        answer = client.call(DescribeConfigsRequest(resources=resources), 4)
    retentions = {}
    for result in answer.results:
        if result.error_code == UNKNOWN_TOPIC:
            return None
        assert result.error_code == NONE, (result.resource_name, result.error_code)
        (setting,) = result.configs
        own = setting.config_source == 1  # DYNAMIC_TOPIC_CONFIG
        retentions[str(result.resource_name)] = int(str(setting.value)) if own else None
    return retentions


def create_last(cluster: Cluster) -> None:
    """Create a topic, and wait for it: what was acknowledged before is then on every node."""

    def is_created() -> bool:
        try:
            with cluster.brokers[0].client() as client:
                (result,) = client.call(creation(LAST, partitions=1), 7).topics
        except (OSError, Closed):
            return False
        return result.error_code in {NONE, EXISTS}

    eventually(is_created, lambda: f"the last topic: {cluster.tails()}")
    wait_known(cluster, LAST)


def shared_state(cluster: Cluster) -> State | None:
    """Return the partition count and setting of each topic if all nodes agree on them."""
    first, *others = [
        (topics, retentions_at(node, sorted(topics)))
        for node in cluster.brokers
        for topics in [topics_at(node)]
    ]
    partitions, retentions = first
    if retentions is None or any(other != first for other in others):
        return None
    del partitions[LAST], retentions[LAST]
    return partitions, retentions


def test_acknowledged_changes_hold_on_every_node_after_faults(cluster, capsys):
    random = Random(SEED)
    nemesis = Nemesis(cluster, random)
    readers = [Reader(node) for node in cluster.brokers]
    with ExitStack() as stack:
        clients = stack.enter_context(Clients(cluster, SEED))
        for reader in readers:
            stack.enter_context(reader)
        eventually(lambda: clients.acknowledged_count() > 20, "20 acknowledged changes")
        for _ in range(ROUNDS):
            nemesis.strike()
            if random.random() < 0.7:
                cluster.wait_complete()
                goal = clients.acknowledged_count() + 10
                clients.wait_acknowledged(goal)
        cluster.wait_complete()
    assert [reader.returned for reader in readers] == [set()] * len(readers), nemesis.faults
    assert all(reader.answer_count > 10 for reader in readers)
    for client in clients.clients:
        assert client.errors == [], nemesis.faults
    with capsys.disabled():
        outcomes = {key.value: dict(counter) for key, counter in clients.outcomes().items()}
        print(f"\nseed {SEED}: {', '.join(nemesis.faults)}\n{outcomes}")
    assert clients.outcomes()[Outcome.ACKNOWLEDGED].keys() == {"create", "delete", "grow", "set"}
    create_last(cluster)
    state = eventually(lambda: shared_state(cluster), "all nodes agree")
    assert state is not None
    check(clients.topics, *state)
    if cluster.nodes[1].kind == "kwire":
        cluster.close()
        for node in cluster.brokers:
            assert set(created_in_log(node).values()) == {1}


def check(
    topics: dict[str, Topic], partitions: dict[str, int], retentions: dict[str, int | None]
) -> None:
    """Check that a node's final topics are possible by the answers that the clients got."""
    assert set(partitions) <= set(topics)
    for name, topic in topics.items():
        is_listed = name in partitions
        assert topic.exists.may_be(is_listed), (name, topic, is_listed)
        if is_listed:
            assert topic.partitions.may_be(partitions[name]), (name, topic, partitions[name])
            assert topic.retention.may_be(retentions[name]), (name, topic, retentions[name])
