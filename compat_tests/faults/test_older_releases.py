"""Clients choose their versions by those of an older release, and work with them.

kwire appears as that release, and so does the proxy in front of the session's broker, which is
Apache Kafka with ``--broker=kafka``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.confluent_kafka.clients import consumer, create, producer
from compat_tests.faults.servers import Faulty, serving
from compat_tests.harness.wait import collect, eventually

PRODUCE = {"2.8": 9, "3.7": 10, "4.0": 12}
"""The last version of Produce in each release."""


@pytest.fixture(params=list(PRODUCE))
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["proxy", "kwire"])
def server(request: pytest.FixtureRequest, broker: Any, release: str) -> Iterator[Faulty]:
    with serving(request.param, broker.address, f"--max-versions={release}") as server:
        yield server


def versions_of(server: Faulty, api: str, client_id: str) -> set[int]:
    requests = server.call("list-requests", api=api, client_id=client_id)["requests"]
    return {request["version"] for request in requests}


def test_librdkafka_sends_versions_of_the_release(
    server: Faulty, release: str, topic: str, group: str
) -> None:
    create(server.address, topic)
    client = producer(server.address, transactional_id=group, client_id=group)
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(topic, b"value")
    client.commit_transaction(30)
    with consumer(server.address, group, auto_offset_reset="earliest") as reader:
        reader.subscribe([topic])
        (message,) = collect(lambda: reader.consume(1, 0.2), 1)
        reader.commit(message, asynchronous=False)
        (committed,) = reader.committed([TopicPartition(topic, 0)], 30)
    assert (message.value(), committed.offset) == (b"value", 1)
    versions = versions_of(server, "Produce", group)
    assert versions
    assert max(versions) <= PRODUCE[release]


def test_kafka_python_sends_the_newest_version_of_the_release(
    server: Faulty, release: str, topic: str, group: str
) -> None:
    create(server.address, topic)
    sender = KafkaProducer(bootstrap_servers=server.address, client_id=group)
    sender.send(topic, b"value").get(30)
    sender.close()
    reader = KafkaConsumer(
        topic,
        bootstrap_servers=server.address,
        group_id=group,
        auto_offset_reset="earliest",
    )
    received: list[bytes] = []

    def read() -> bool:
        batches = reader.poll(10_000)
        received.extend(record.value for records in batches.values() for record in records)
        return bool(received)

    eventually(read, "the record")
    reader.commit()
    reader.close()
    assert received == [b"value"]
    versions = versions_of(server, "Produce", group)
    assert versions
    assert max(versions) <= PRODUCE[release]
