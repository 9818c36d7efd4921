"""Replicas of kwire and Apache Kafka in one ISR: each follows and leads the other.

Two clusters, with two nodes of either kind, formatted by Apache Kafka with its default feature
levels. Each topic has three partitions, one led by each node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.cluster import mixed
from compat_tests.cluster.coordinators import coordinator
from compat_tests.cluster.mixed import (
    CLIENT_SECONDS,
    PARTITIONS,
    START_SECONDS,
    GroupLoad,
    IdempotentLoad,
    TransactionalLoad,
    bootstrap,
    create,
    read,
    relaunch_dead,
    running,
    until_done,
    wait_all_in_sync,
    wait_equal,
    wait_leader,
)
from compat_tests.cluster.nodes import Cluster, Node, stop_in_order
from compat_tests.cluster.reassignments import (
    Plan,
    reassign,
    reassignments,
    wait_deleted,
    wait_moved,
)
from compat_tests.cluster.tools import ELECTION, by_broker
from compat_tests.cluster.topics import NODES, isr, leader_of, segments, wait_isr
from compat_tests.confluent_kafka.clients import partition_of, value_of
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from kwire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.coordinator.partitioning import partition_for
from kwire.replica.partition import EARLIEST
from kwire.types import CONSUMER_OFFSETS, TRANSACTION_STATE

pytestmark = pytest.mark.with_apache

HEADERS: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("n", None), ("e", b"")]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OFFSETS_PARTITIONS = 3


@pytest.fixture(
    scope="module",
    params=[("kwire", "kwire", "kafka"), ("kafka", "kafka", "kwire")],
    ids="-".join,
)
def module_cluster(request, jvm: Jvm, tmp_path_factory) -> Iterator[Cluster]:
    cluster = mixed.start(jvm, tmp_path_factory.mktemp("mixed"), request.param)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(module_cluster: Cluster) -> Cluster:
    """The module's cluster, with all nodes running."""
    relaunch_dead(module_cluster)
    return module_cluster


def of_kind(cluster: Cluster, kind: str) -> Node:
    return next(node for node in cluster.brokers if node.kind == kind)


def elect_preferred(jvm: Jvm, cluster: Cluster) -> None:
    how = ("--election-type", "preferred", "--all-topic-partitions")
    jvm.tool(ELECTION, *by_broker(cluster), *how).ok()


def send_records_of_every_kind(cluster: Cluster, topic: str) -> None:
    """Send records with each codec, headers, keys, tombstones and timestamps; wait for acks=all."""
    errors: list[object] = []
    for codec in CODECS:
        client = Producer(
            {
                "bootstrap.servers": bootstrap(cluster),
                "enable.idempotence": codec != "gzip",
                "compression.type": codec,
                "linger.ms": 5,
            }
        )
        for number in range(90):
            client.produce(
                topic,
                key=None if number % 7 == 0 else b"key-%d" % number,
                value=None if number % 11 == 0 else f"{codec}-{number}".encode() * (number % 9),
                partition=number % PARTITIONS,
                headers=HEADERS[: number % 4],
                on_delivery=lambda error, _: errors.append(error),
            )
        assert client.flush(60) == 0
    assert errors == [None] * 90 * len(CODECS)


def send_transactions(cluster: Cluster, topic: str) -> int:
    """Commit and abort transactions; return the number of committed records a partition."""
    client = Producer({"bootstrap.servers": bootstrap(cluster), "transactional.id": f"of-{topic}"})
    until_done(lambda: client.init_transactions(10))
    for number in range(6):
        client.begin_transaction()
        for partition in range(PARTITIONS):
            client.produce(topic, b"in transaction %d" % number, partition=partition)
        assert client.flush(60) == 0
        until_done(
            lambda: client.abort_transaction(10) if number % 2 else client.commit_transaction(10)  # noqa: B023
        )
    return 3


def test_records_of_every_kind_are_copied_byte_by_byte(cluster: Cluster) -> None:
    """Leader epochs, codecs, headers, tombstones and transaction markers (invariant 23)."""
    create(cluster, "kinds", internal_segment_bytes="2500", index_interval_bytes="300")
    send_records_of_every_kind(cluster, "kinds")
    committed = send_transactions(cluster, "kinds")
    for index in range(PARTITIONS):
        batches = wait_equal(cluster, "kinds", index)
        assert len(batches) > len(CODECS)
        plain = 30 * len(CODECS)
        assert len(read(cluster, "kinds", index, plain + 6)) == plain + 6
        assert len(read(cluster, "kinds", index, plain, committed=True)) == plain + committed
    assert len(list((cluster.nodes[1].directory / "data" / "kinds-0").glob("*.log"))) > 1


def test_leaders_move_between_kinds_by_elections(jvm: Jvm, cluster: Cluster) -> None:
    """Producers, transactions and a group go on (invariants 3, 6, 37 and 51)."""
    create(cluster, "elected")
    create(cluster, "elected-tx")
    loads = _loads(cluster, "elected")
    orders = ((2, 3, 1), (3, 1, 2), (1, 2, 3))
    with running(*loads):
        for first in range(len(orders)):
            for topic in ("elected", "elected-tx"):
                for index in range(PARTITIONS):
                    order = orders[(first + index) % len(orders)]
                    assert reassign(cluster, topic, order, index) == 0
            elect_preferred(jvm, cluster)
            for topic in ("elected", "elected-tx"):
                for index in range(PARTITIONS):
                    target = orders[(first + index) % len(orders)][0]
                    wait_leader(cluster, topic, index, target)
            for load in loads:
                load.wait_more()
    _check(cluster, loads)


def move_coordinators(jvm: Jvm, cluster: Cluster, index: int, order: tuple[int, ...]) -> None:
    """Make the first of these nodes the coordinator of the groups in a partition of offsets."""
    assert reassign(cluster, CONSUMER_OFFSETS, order, index) == 0
    elect_preferred(jvm, cluster)
    wait_leader(cluster, CONSUMER_OFFSETS, index, order[0])


def test_consumer_groups_go_on_while_their_coordinator_moves_between_kinds(
    jvm: Jvm, cluster: Cluster
) -> None:
    """A member of the consumer protocol keeps its group, and no record is lost (KIP-848)."""
    create(cluster, "consumed")
    load = IdempotentLoad(cluster, "consumed", cluster.bootstrap)
    group = GroupLoad(cluster, "consumed", cluster.bootstrap, protocol="consumer")
    index = partition_for(group.group, OFFSETS_PARTITIONS)
    kinds = set()
    with running(load, group):
        epoch = _member_epoch(cluster, group.group)
        for order in ((2, 3, 1), (3, 1, 2), (1, 2, 3)):
            move_coordinators(jvm, cluster, index, order)
            kinds.add(coordinator(cluster, group.group, kind=0).kind)
            for each in (load, group):
                each.wait_more()
        assert _member_epoch(cluster, group.group) == epoch, "the member was never fenced"
    assert kinds == {"kwire", "kafka"}
    group.check(load.acknowledged)


def test_groups_change_their_protocol_while_their_coordinator_moves_between_kinds(
    jvm: Jvm, cluster: Cluster
) -> None:
    """A classic group becomes a consumer group and classic again at each coordinator (KIP-848)."""
    create(cluster, "changing")
    load = IdempotentLoad(cluster, "changing", cluster.bootstrap)
    classic = GroupLoad(cluster, "changing", cluster.bootstrap, group="changing-readers")
    index = partition_for(classic.group, OFFSETS_PARTITIONS)
    kinds: dict[str, set[str]] = {"consumer": set(), "classic": set()}

    def wait_type(name: str) -> None:
        kinds[name].add(_wait_type(cluster, classic.group, name))

    with running(load, classic):
        for order in ((2, 3, 1), (3, 1, 2), (1, 2, 3)):
            wait_type("classic")
            consumer = GroupLoad(
                cluster,
                classic.topic,
                cluster.bootstrap,
                protocol="consumer",
                group=classic.group,
                values=classic.values,
            )
            with running(consumer):
                wait_type("consumer")
                move_coordinators(jvm, cluster, index, order)
                wait_type("consumer")
                for each in (load, classic, consumer):
                    each.wait_more()
            wait_type("classic")
            classic.wait_more()
    assert all(each == {"kwire", "kafka"} for each in kinds.values()), kinds
    classic.check(load.acknowledged)


def _wait_type(cluster: Cluster, group_id: str, name: str) -> str:
    """Wait until a group is stable and of this type; return the kind of its coordinator."""

    def find() -> str | None:
        node = coordinator(cluster, group_id, kind=0)
        with node.client() as client:
            groups = client.call(ListGroupsRequest(), 5).groups
        is_found = (group_id, name, "Stable") in (
            (each.group_id, each.group_type.lower(), each.group_state) for each in groups
        )
        return node.kind if is_found else None

    kind = eventually(find, f"a stable {name} group {group_id}", CLIENT_SECONDS)
    assert kind is not None
    return kind


def _member_epoch(cluster: Cluster, group_id: str) -> tuple[str, int]:
    """Return the id and the epoch of the only member of a consumer group."""
    request = ConsumerGroupDescribeRequest(
        group_ids=[group_id], include_authorized_operations=False
    )

    def find() -> tuple[str, int] | None:
        with coordinator(cluster, group_id, kind=0).client() as client:
            (group,) = client.call(request, 1).groups
        if group.error_code or group.group_state != "Stable":
            return None
        (member,) = group.members
        return member.member_id, member.member_epoch

    identity = eventually(find, f"a stable group {group_id}")
    assert identity is not None
    return identity


def _loads(cluster: Cluster, topic: str) -> tuple[IdempotentLoad, TransactionalLoad, GroupLoad]:
    servers = cluster.bootstrap
    return (
        IdempotentLoad(cluster, topic, servers),
        TransactionalLoad(cluster, f"{topic}-tx", servers),
        GroupLoad(cluster, topic, servers),
    )


def _check(cluster: Cluster, loads: tuple[IdempotentLoad, TransactionalLoad, GroupLoad]) -> None:
    """Check the records, the transactions, the group and all replicas."""
    produced, transactions, group = loads
    wait_all_in_sync(cluster, produced.topic, transactions.topic, CONSUMER_OFFSETS)
    produced.check()
    transactions.check()
    group.check(produced.acknowledged)
    for topic in (produced.topic, transactions.topic):
        for index in range(PARTITIONS):
            wait_equal(cluster, topic, index)


def test_leaders_die_and_return(cluster: Cluster) -> None:
    """Each node is killed in turn under load, nothing is lost (invariants 1, 3, 6, 21, 51)."""
    create(cluster, "killed")
    create(cluster, "killed-tx")
    loads = _loads(cluster, "killed")
    with running(*loads):
        for node in cluster.brokers:
            node.kill()
            for load in loads:
                load.wait_more()
            node.launch()
            cluster.wait_complete(START_SECONDS)
            wait_all_in_sync(cluster, "killed", "killed-tx", CONSUMER_OFFSETS, TRANSACTION_STATE)
    _check(cluster, loads)


def test_leaders_move_by_controlled_shutdown(cluster: Cluster) -> None:
    """Each node stops in order and returns under load (invariants 37 and 108)."""
    create(cluster, "stopped")
    create(cluster, "stopped-tx")
    loads = _loads(cluster, "stopped")
    with running(*loads):
        for node in cluster.brokers:
            stop_in_order(node)
            for load in loads:
                load.wait_more()
            node.launch()
            cluster.wait_complete(START_SECONDS)
            wait_all_in_sync(cluster, "stopped", "stopped-tx", CONSUMER_OFFSETS, TRANSACTION_STATE)
    _check(cluster, loads)


def test_former_leader_truncates_after_an_unclean_election(cluster: Cluster) -> None:
    """A leader of one kind drops what one of the other kind lacks (invariants 26 and 33)."""
    for former, other in (("kwire", "kafka"), ("kafka", "kwire")):
        first, second = of_kind(cluster, former), of_kind(cluster, other)
        topic = f"risky-{former}"
        create(
            cluster,
            topic,
            [(first.id, second.id)],
            min_insync_replicas="1",
            unclean_leader_election_enable="true",
        )
        client = Producer(
            {"bootstrap.servers": bootstrap(cluster), "compression.type": "zstd", "linger.ms": 2}
        )
        _send(client, topic, range(100))
        second.kill()
        wait_isr(cluster, topic, {first.id}, seconds=CLIENT_SECONDS)
        for number in range(100, 130):
            _send(client, topic, [number])
        first.kill()
        second.launch()
        wait_leader(cluster, topic, 0, second.id, 90)
        client = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 2})
        for number in range(200, 205):
            _send(client, topic, [number])
        first.launch()
        cluster.wait_complete(START_SECONDS)
        wait_isr(cluster, topic, {first.id, second.id}, seconds=CLIENT_SECONDS)
        wait_equal(cluster, topic, 0, (first.id, second.id))
        values = [int(value) for value in read(cluster, topic, 0, 105)]
        assert values == [*range(100), *range(200, 205)]


def _send(client: Producer, topic: str, values) -> None:
    errors: list[object] = []
    for value in values:
        client.produce(
            topic, b"%d" % value, partition=0, on_delivery=lambda error, _: errors.append(error)
        )
    assert client.flush(60) == 0
    assert not any(errors), errors


def test_deletion_of_records_waits_for_replicas_of_both_kinds(jvm: Jvm, cluster: Cluster) -> None:
    """The low watermark is that of all replicas, and moves with the leader (invariant 39)."""
    create(cluster, "cut", internal_segment_bytes="2500")
    send_records_of_every_kind(cluster, "cut")
    admin = AdminClient({"bootstrap.servers": bootstrap(cluster)})
    places = [TopicPartition("cut", index, 100 + index) for index in range(PARTITIONS)]
    for place, future in admin.delete_records(places, request_timeout=60).items():
        assert future.result(60).low_watermark == place.offset
    for order in ((2, 3, 1), (3, 1, 2)):
        for index in range(PARTITIONS):
            assert reassign(cluster, "cut", order, index) == 0
        elect_preferred(jvm, cluster)
        for index in range(PARTITIONS):
            wait_leader(cluster, "cut", index, order[0])
            leader = cluster.nodes[order[0]]
            assert earliest_offset(leader, "cut", index) == 100 + index
        client = Producer({"bootstrap.servers": bootstrap(cluster)})
        _send(client, "cut", range(3))


def earliest_offset(leader: Node, topic: str, index: int) -> int:
    shape = ListOffsetsRequest.ListOffsetsTopic
    partition = shape.ListOffsetsPartition(partition_index=index, timestamp=EARLIEST)
    request = ListOffsetsRequest(replica_id=-1, topics=[shape(name=topic, partitions=[partition])])

    def find() -> int | None:
        with leader.client() as client:
            answer = client.call(request, 6).topics[0].partitions[0]
        return None if answer.error_code else answer.offset

    offset = eventually(find, f"the start of {topic}-{index}")
    assert offset is not None
    return offset


def test_consumer_reads_from_a_follower_of_the_other_kind(cluster: Cluster) -> None:
    """Consumers in the rack of each node read from its replicas (KIP-392, invariant 38)."""
    create(cluster, "near")
    load = IdempotentLoad(cluster, "near", cluster.bootstrap)
    with running(load):
        for node in cluster.brokers:
            sources, values = _read_near(cluster, "near", node)
            assert sources == {node.id}
            for index in range(PARTITIONS):
                assert values[index] == list(range(len(values[index])))
    load.check()


def _read_near(cluster: Cluster, topic: str, node: Node) -> tuple[set[int], list[list[int]]]:
    """Read with a client in a node's rack until all fetches go there; return what was read."""
    sources: dict[str, int] = {}

    def on_statistics(text: str) -> None:
        partitions = json.loads(text)["topics"].get(topic, {}).get("partitions", {})
        sources.update({n: p["broker"] for n, p in partitions.items() if n != "-1"})

    client = Consumer(
        {
            "bootstrap.servers": bootstrap(cluster),
            "group.id": "near",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.rack": f"rack-{node.id}",
            "statistics.interval.ms": 100,
            "stats_cb": on_statistics,
        }
    )
    values: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def is_near() -> bool:
        for message in client.consume(1000, 0.2):
            if message.error() is None:
                values[partition_of(message)].append(int(value_of(message)))
        return len(sources) == PARTITIONS and set(sources.values()) == {node.id}

    try:
        client.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        eventually(is_near, f"fetches from {node.id}, not {sources}")
        lengths = [len(numbers) for numbers in values]
        eventually(
            lambda: (
                is_near() and all(len(v) > n + 20 for v, n in zip(values, lengths, strict=True))
            ),
            f"new records from {node.id}",
        )
    finally:
        client.close()
    return set(sources.values()), values


def test_replicas_move_from_one_kind_to_the_other(cluster: Cluster) -> None:
    """Reassignments under a producer; the former replicas are deleted (invariant 36)."""
    single = next(
        node for node in cluster.brokers
        if sum(other.kind == node.kind for other in cluster.brokers) == 1
    )  # fmt: skip
    pair = [node for node in cluster.brokers if node is not single]
    create(cluster, "moved", [(single.id,)], min_insync_replicas="1")
    load = IdempotentLoad(cluster, "moved", cluster.bootstrap, partitions=1)
    with running(load):
        for target in ([n.id for n in pair], [single.id], [pair[0].id], [single.id, pair[1].id]):
            assert reassign(cluster, "moved", target) == 0
            wait_moved(cluster, "moved", *target, seconds=90)
            load.wait_more()
            for node in cluster.brokers:
                if node.id not in target:
                    wait_deleted(node, "moved")
    load.check()
    wait_equal(cluster, "moved", 0, (single.id, pair[1].id))


def test_throttled_moves_between_kinds(jvm: Jvm, cluster: Cluster, tmp_path: Path) -> None:
    """Leaders and followers of either kind keep a reassignment's rate (KIP-73)."""
    for former, other in (("kwire", "kafka"), ("kafka", "kwire")):
        source, target = of_kind(cluster, former), of_kind(cluster, other)
        topic = f"slow-{former}"
        create(cluster, topic, [(source.id,)], min_insync_replicas="1")
        client = Producer({"bootstrap.servers": bootstrap(cluster), "compression.type": "none"})
        for _ in range(150):
            client.produce(topic, b"x" * 100_000, partition=0)
            assert client.flush(60) == 0
        plan = Plan(jvm, cluster, tmp_path / f"{topic}.json", topic, target.id)
        plan.run("--execute", "--throttle", "1000").ok()
        assert "still in progress" in plan.run("--verify").ok()
        assert len(segments(target, topic)) < 12_000_000
        plan.run("--execute", "--additional", "--throttle", "1000000000").ok()
        wait_moved(cluster, topic, target.id, seconds=90)
        assert "is completed" in plan.run("--verify").ok()
        assert not reassignments(cluster)
        assert len(read(cluster, topic, 0, 150)) == 150


def test_java_transactions_with_leaders_and_coordinators_of_both_kinds(
    jvm: Jvm, cluster: Cluster
) -> None:
    """Every end raises the epoch, and leaders add partitions themselves (KIP-890)."""
    create(cluster, "source")
    client = Producer({"bootstrap.servers": bootstrap(cluster)})
    for number in range(90):
        client.produce("source", b"%d" % number, partition=number % PARTITIONS)
    assert client.flush(60) == 0
    orders = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
    for order in orders:
        topic = f"copy-{order[0]}"
        create(cluster, topic, [order])
        wait_leaders(jvm, cluster, topic, {0: order[0]})
        for node in cluster.brokers:
            name = id_of_coordinator(cluster, node, topic)
            arguments = (bootstrap(cluster), topic, name)
            result = jvm.scenario("Transactions", "epochs", *arguments, "4")
            assert result["epochs"] == [1, 2, 3, 4]
            more = ("source", f"group-{name}", "90")
            result = jvm.scenario("Transactions", "transform", *arguments, *more)
            assert (result["copied"], result["committed"]) == (90, 90)
        wait_equal(cluster, topic)
        values = read(cluster, topic, 0, 3 * (2 + 90), committed=True)
        assert sorted(values) == sorted(3 * [*(b"%d" % number for number in range(90)), b"0", b"2"])


def wait_leaders(jvm: Jvm, cluster: Cluster, topic: str, leaders: dict[int, int]) -> None:
    """Elect the preferred leaders if others lead."""
    if any(leader_of(cluster, topic, index) != node for index, node in leaders.items()):
        elect_preferred(jvm, cluster)
    for index, node in leaders.items():
        wait_leader(cluster, topic, index, node)


def id_of_coordinator(cluster: Cluster, node: Node, prefix: str) -> str:
    """Return a transactional id that a node coordinates."""
    names = (f"{prefix}-{number}-{node.id}" for number in range(100))
    return next(name for name in names if coordinator(cluster, name) is node)


def test_coordinators_move_to_the_other_kind_and_finish(cluster: Cluster) -> None:
    """Open transactions outlive their coordinator's death (invariants 59 and 61)."""
    create(cluster, "coordinated")
    for round_number in range(2):
        open_transactions = {}
        for name in ("p", "q", "r", "s"):
            client = Producer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "transactional.id": name,
                    "topic.metadata.refresh.interval.ms": 500,
                }
            )
            until_done(partial(client.init_transactions, 10))
            client.begin_transaction()
            for index in range(PARTITIONS):
                client.produce("coordinated", f"{round_number}{name}".encode(), partition=index)
            client.flush(60)
            open_transactions[name] = client
        node = coordinator(cluster, "p")
        node.kill()
        for name, client in open_transactions.items():
            end = client.commit_transaction if name in "pr" else client.abort_transaction
            until_done(partial(end, 10))
        node.launch()
        cluster.wait_complete(START_SECONDS)
        wait_all_in_sync(cluster, "coordinated", TRANSACTION_STATE)
    expected = {b"0p", b"0r", b"1p", b"1r"}
    for index in range(PARTITIONS):
        values = read(cluster, "coordinated", index, len(expected), committed=True)
        assert sorted(values) == sorted(expected)
        wait_equal(cluster, "coordinated", index)
    assert isr(cluster, TRANSACTION_STATE) == set(NODES)
