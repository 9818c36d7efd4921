"""Real clients push what subscriptions ask them for."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from compat_tests.harness.wait import eventually

pytestmark = pytest.mark.single
PRODUCER = "kwire_client_producer_connection_creation_total"
CONSUMER = "kwire_client_consumer_connection_creation_total"


def test_librdkafka_pushes_its_metrics(receiver, tool, unique, topic):
    name = unique("producer")
    tool.subscribe(name, "org.apache.kafka.producer.", name)
    producer = Producer({"bootstrap.servers": receiver.broker.address, "client.id": name})

    def has_pushed():
        producer.produce(topic, b"x")
        producer.flush(10)
        return PRODUCER in receiver.names(name)

    eventually(has_pushed, "the producer has pushed")
    assert all(each.startswith("kwire_client_producer_") for each in receiver.names(name))


def test_only_matching_clients_push_only_what_they_are_asked_for(receiver, tool, unique, topic):
    name, other = unique("consumer"), unique("other")
    tool.subscribe(name, "org.apache.kafka.consumer.connection.", name)
    consumers = [
        Consumer(
            {"bootstrap.servers": receiver.broker.address, "client.id": each, "group.id": each}
        )
        for each in (other, name)
    ]

    def has_pushed():
        for consumer in consumers:
            consumer.poll(0.1)
        return receiver.names(name)

    for consumer in consumers:
        consumer.subscribe([topic])
    names = eventually(has_pushed, "the consumer has pushed")
    assert names <= {CONSUMER, CONSUMER.replace("total", "rate")}
    assert not receiver.names(other)
    for consumer in consumers:
        consumer.close()


def test_java_producer_pushes_its_metrics_and_a_last_time_when_it_closes(
    receiver, tool, jvm, unique, topic, tmp_path
):
    name = unique("java")
    tool.subscribe(name, "*", name)
    config = tmp_path / "producer.properties"
    config.write_text(f"client.id={name}\n")
    jvm.tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", receiver.broker.address, "--topic", topic),
        *("--max-messages", "15", "--throughput", "5", "--command-config", str(config)),
    ).ok()
    expected = {PRODUCER, "kwire_client_producer_record_queue_time_avg"}
    eventually(lambda: expected <= receiver.names(name), lambda: str(receiver.names(name)))
