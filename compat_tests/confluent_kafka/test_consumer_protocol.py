"""librdkafka consumers with `group.protocol=consumer` (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaException,
    TopicPartition,
)

from compat_tests.confluent_kafka.clients import (
    admin,
    consumer,
    create,
    deliver,
    owned_partitions,
    poll,
    producer,
    settle,
    with_dots,
)
from compat_tests.harness.wait import collect, eventually


@contextmanager
def member(address: str, group: str, **settings: Any) -> Iterator[Any]:
    """Run a consumer of the new protocol, whose session and heartbeats the broker decides on."""
    shared = {
        "bootstrap.servers": address,
        "group.id": group,
        "group.protocol": "consumer",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "topic.metadata.refresh.interval.ms": 500,
    }
    client = Consumer({**shared, **with_dots(settings)})
    try:
        yield client
    finally:
        client.close()


def test_members_share_partitions_and_take_over_from_those_that_leave(broker, topic, group):
    create(broker.address, topic, 4)
    with member(broker.address, group) as first:
        first.subscribe([topic])
        settle([first], [4])
        with member(broker.address, group) as second, member(broker.address, group) as third:
            for client in (second, third):
                client.subscribe([topic])
            settle([first, second, third], [1, 1, 2])
        settle([first], [4])


@pytest.mark.parametrize(("assignor", "sizes"), [("uniform", [2, 2]), ("range", [2, 2])])
def test_assignor_is_chosen_by_the_client(broker, topic, group, assignor, sizes):
    create(broker.address, topic, 4)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(member(broker.address, group, group_remote_assignor=assignor))
            for _ in range(2)
        ]
        for client in clients:
            client.subscribe([topic])
        settle(clients, sizes)


def test_unknown_assignor_is_rejected(broker, topic, group):
    create(broker.address, topic)
    with member(broker.address, group, group_remote_assignor="unknown") as client:
        client.subscribe([topic])
        with pytest.raises(KafkaException) as caught:
            collect(lambda: check(client.consume(1, 0.2)), 1)
        assert caught.value.args[0].name() == "_FATAL"
        assert "assignor" in caught.value.args[0].str()


def check(messages: list[Any]) -> list[Any]:
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
    return messages


def test_committed_offsets_survive_a_member(broker, topic, group):
    create(broker.address, topic)
    deliver(producer(broker.address), [{"topic": topic, "value": b"%d" % n} for n in range(20)])
    with member(broker.address, group) as client:
        client.subscribe([topic])
        collect(lambda: poll(client), 20)
        client.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    with member(broker.address, group) as client:
        client.subscribe([topic])
        assert collect(lambda: poll(client), 13)[0].value() == b"7"


def test_static_member_keeps_its_partitions_across_a_restart(broker, topic, group):
    create(broker.address, topic, 4)
    with member(broker.address, group, group_instance_id="a") as first:
        first.subscribe([topic])
        with member(broker.address, group, group_instance_id="b") as second:
            second.subscribe([topic])
            settle([first, second], [2, 2])
            of_first = owned_partitions(first)
            of_second = owned_partitions(second)
        with member(broker.address, group, group_instance_id="b") as again:
            again.subscribe([topic])
            settle([first, again], [2, 2])
            assert owned_partitions(first) == of_first
            assert owned_partitions(again) == of_second


def test_group_is_listed_described_and_deleted(broker, topic, group):
    create(broker.address, topic, 2)
    tool = admin(broker.address)
    with member(broker.address, group, client_id="me") as client:
        client.subscribe([topic])
        settle([client], [2])
        described = tool.describe_consumer_groups([group])[group].result(30)
        assert described.state == ConsumerGroupState.STABLE
        assert described.type == ConsumerGroupType.CONSUMER
        (only,) = described.members
        assert only.client_id == "me"
        assert {p.partition for p in only.assignment.topic_partitions} == {0, 1}
        assert {p.partition for p in only.target_assignment.topic_partitions} == {0, 1}
        listing = tool.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(30)
        assert group in {each.group_id for each in listing.valid}
        listing = tool.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(30)
        assert group not in {each.group_id for each in listing.valid}
        with pytest.raises(KafkaException):
            tool.delete_consumer_groups([group])[group].result(30)
    eventually(lambda: is_empty(tool, group), "the group is empty")
    tool.delete_consumer_groups([group])[group].result(30)
    listing = tool.list_consumer_groups().result(30)
    assert group not in {each.group_id for each in listing.valid}


def is_empty(tool: Any, group: str) -> bool:
    described = tool.describe_consumer_groups([group])[group].result(30)
    return bool(described.state == ConsumerGroupState.EMPTY)


def test_regular_expression_matches_topics_on_the_broker(broker, unique, group):
    """A regular expression matches topics on the broker, and new topics ten seconds later."""
    prefix = unique("regex")
    first, second, other = f"{prefix}-a", f"{prefix}-b", unique("other")
    for name in (first, other):
        create(broker.address, name, 2)
    with member(broker.address, group) as client:
        client.subscribe([f"^{prefix}.*"])
        (owned,) = settle([client], [2])
        assert owned == {(first, 0), (first, 1)}
        create(broker.address, second, 1)
        (owned,) = settle([client], [3])
        assert owned == {(first, 0), (first, 1), (second, 0)}


def test_expression_that_re2_rejects_is_refused(broker, group):
    """An expression that only the broker's library rejects is refused."""
    with member(broker.address, group) as client:
        client.subscribe(["^a{1001}"])
        with pytest.raises(KafkaException) as caught:
            collect(lambda: check(client.consume(1, 0.2)), 1)
        assert "regular expression" in caught.value.args[0].str().lower()


@contextmanager
def classic_member(address: str, group: str, **settings: Any) -> Iterator[Any]:
    with consumer(
        address, group, partition_assignment_strategy="cooperative-sticky", **settings
    ) as client:
        yield client


def test_group_moves_to_the_new_protocol_and_back_with_its_members(broker, topic, group):
    """Members change one after the other; each partition always has one reader."""
    create(broker.address, topic, 4)
    tool = admin(broker.address)
    kinds = {"classic": ConsumerGroupType.CLASSIC, "consumer": ConsumerGroupType.CONSUMER}

    def group_type() -> Any:
        listing = tool.list_consumer_groups().result(30)
        (kind,) = (each.type for each in listing.valid if each.group_id == group)
        return kind

    with classic_member(broker.address, group) as first:
        first.subscribe([topic])
        settle([first], [4])
        assert group_type() == kinds["classic"]
        with member(broker.address, group) as second:
            second.subscribe([topic])
            settle([first, second], [2, 2])
            assert group_type() == kinds["consumer"]
            with classic_member(broker.address, group) as third:
                third.subscribe([topic])
                settle([first, second, third], [1, 1, 2])
        settle([first], [4])
        assert group_type() == kinds["classic"]


def test_last_classic_member_leaves_a_group_of_the_new_protocol(broker, topic, group):
    create(broker.address, topic, 4)
    deliver(producer(broker.address), [{"topic": topic, "value": b"%d" % n} for n in range(20)])
    with ExitStack() as stack:
        first = stack.enter_context(classic_member(broker.address, group))
        first.subscribe([topic])
        settle([first], [4])
        second = stack.enter_context(member(broker.address, group))
        second.subscribe([topic])
        settle([first, second], [2, 2])
        first.commit(asynchronous=False, offsets=[TopicPartition(topic, 0, 1)])
        first.close()
        settle([second], [4])
        second.commit(asynchronous=False, offsets=[TopicPartition(topic, 0, 2)])
        (committed,) = second.committed([TopicPartition(topic, 0)], timeout=30)
        assert committed.offset == 2
