"""confluent-kafka (librdkafka) clients with the settings that these tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.wait import collect, eventually


def producer(address: str, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": address, **with_dots(settings)})


@contextmanager
def consumer(address: str, group: str, **settings: Any) -> Iterator[Any]:
    defaults = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 100}
    fast = {"topic.metadata.refresh.interval.ms": 500, "heartbeat.interval.ms": 200}
    shared = {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False}
    client = Consumer({**shared, **defaults, **fast, **with_dots(settings)})
    try:
        yield client
    finally:
        client.close()


def admin(address: str) -> Any:
    return AdminClient({"bootstrap.servers": address})


def with_dots(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by their own names: with dots, except for those of callbacks."""
    return {
        name if name.endswith("_cb") else name.replace("_", "."): value
        for name, value in settings.items()
    }


def create(
    address: str, topic: str, partitions: int = 1, replicas: int = 1, **configs: str
) -> None:
    new = NewTopic(topic, partitions, replicas, config=with_dots(configs))
    client = admin(address)  # Kept until the answer: a dropped client cancels its futures.
    client.create_topics([new])[topic].result(30)

    def is_known() -> bool:  # Apache Kafka answers before a broker has applied the creation.
        described = client.list_topics(timeout=30).topics.get(topic)
        return described is not None and described.error is None

    eventually(is_known, f"{topic} is known")


def deliver(client: Any, messages: Sequence[dict[str, Any]]) -> list[Any]:
    """Produce all and return them as delivered, in the order of delivery."""
    delivered: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        delivered.append(message)

    for message in messages:
        client.produce(**message, on_delivery=on_delivery)
        client.poll(0)
    assert client.flush(60) == 0
    return delivered


def poll(client: Any, seconds: float = 0.2, most: int = 500) -> list[Any]:
    messages = client.consume(most, seconds)
    for message in messages:
        assert message.error() is None, message.error()
    return list(messages)


def value_of(message: Message) -> bytes:
    """Return the value of a record that is no tombstone."""
    value = message.value()
    assert value is not None
    return value


def is_end(message: Message) -> bool:
    """Whether it reports the end of a partition, and no other error, which may name none."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def partition_of(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition


def read(address: str, topic: str, count: int, partitions: int = 1, **settings: Any) -> list[Any]:
    with consumer(address, "no-group", **settings) as client:
        client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        return collect(lambda: poll(client), count)


def owned_partitions(client: Any) -> set[tuple[str, int]]:
    return {(place.topic, place.partition) for place in client.assignment()}


def settle(
    members: Sequence[Any], sizes: list[int], on_message: Callable[[Any], None] = lambda _: None
) -> list[set[tuple[str, int]]]:
    """Poll all members in turn until their assignments are disjoint and have these sizes."""

    def assignments_of_sizes() -> list[set[tuple[str, int]]]:
        for member in members:
            for message in poll(member, 0.05):
                on_message(message)
        got = [owned_partitions(member) for member in members]
        apart = sum(map(len, got)) == len(set().union(*got))
        return got if apart and sorted(map(len, got)) == sizes else []

    return eventually(assignments_of_sizes, f"assignments of {sizes}")
