"""Faults that are arranged over HTTP: at a proxy in front of the broker, and at kwire itself.

What a client sees must not depend on who serves it: with ``--broker=kafka`` the proxy is in front
of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.confluent_kafka.clients import consumer, create, deliver, producer
from compat_tests.faults.servers import Faulty, serving
from compat_tests.harness.wait import collect, eventually

TOOLS = "org.apache.kafka.tools"


@pytest.fixture
def faulty(server: Faulty) -> Iterator[Faulty]:
    """The server without the faults of earlier tests, whether they happened or not."""
    yield server
    server.call("clear-faults")


@pytest.fixture(scope="module", params=["proxy", "kwire"])
def server(request: pytest.FixtureRequest, broker: Any) -> Iterator[Faulty]:
    """A proxy in front of the session's broker, or kwire with a control port."""
    with serving(request.param, broker.address) as server:
        yield server


def test_a_lost_response_is_retried_and_written_once(faulty: Faulty, topic: str) -> None:
    create(faulty.address, topic)
    faulty.call("add-fault", action="drop", after=True, api="Produce", topic=topic)
    client = producer(faulty.address, enable_idempotence=True)
    client.produce(topic, b"once")
    assert client.flush(30) == 0
    client.produce(topic, b"end")
    assert client.flush(30) == 0
    with consumer(faulty.address, "no-group") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        values = [m.value() for m in collect(lambda: reader.consume(10, 0.2), 2)]
    assert values == [b"once", b"end"]
    faulty.call("check-faults")


def test_one_partition_fails_and_the_others_do_not_wait(faulty: Faulty, topic: str) -> None:
    create(faulty.address, topic, 2)
    fault = {"action": "fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"}
    faulty.call("add-fault", **fault, topic=topic, partition=1, times=3)
    # Both records go with one request, when flush() is called.
    client = KafkaProducer(bootstrap_servers=faulty.address, retries=10, linger_ms=30_000)
    finished: list[int] = []
    for partition in (1, 0):
        client.send(topic, b"value", partition=partition).add_callback(
            lambda data: finished.append(data.partition)
        )
    client.flush(60)
    client.close()
    assert finished == [0, 1]
    faulty.call("check-faults")


def test_a_consumer_reports_damage_and_reads_the_record_again(faulty: Faulty, topic: str) -> None:
    create(faulty.address, topic)
    client = producer(faulty.address)
    client.produce(topic, b"poison")
    assert client.flush(30) == 0
    faulty.call("add-fault", action="corrupt", api="Fetch", topic=topic, client_id="strict")
    outcomes: list[object] = []

    def read() -> bool:
        message = reader.poll(0.2)
        if message is not None:
            error = message.error()
            outcomes.append(message.value() if error is None else error.code())
        return b"poison" in outcomes

    with consumer(faulty.address, "no-group", check_crcs=True, client_id="strict") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        eventually(read, "the record")
    assert outcomes == [KafkaError._BAD_MSG, b"poison"]
    faulty.call("check-faults")


def test_a_member_rejoins_after_an_error_of_its_heartbeat(
    faulty: Faulty, topic: str, group: str
) -> None:
    create(faulty.address, topic)
    client = KafkaConsumer(
        bootstrap_servers=faulty.address,
        group_id=group,
        client_id=group,
        heartbeat_interval_ms=200,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    eventually(lambda: client.partitions_for_topic(topic), "the topic")
    client.subscribe([topic])
    # kafka-python 3.0 never heartbeats again when a poll's time ends between a SyncGroup and its
    # answer, so the poll must be long enough for both on a busy machine. A record ends it.
    deliver(producer(faulty.address), [{"topic": topic, "value": b"x"}])
    eventually(lambda: client.poll(10_000), "a record of the first assignment")

    faulty.call(
        "add-fault", action="fail", api="Heartbeat", error="REBALANCE_IN_PROGRESS", group=group
    )

    def has_rejoined() -> bool:
        client.poll(2000)
        if client._coordinator.rejoining:  # It would no longer do so by itself.
            client._coordinator.request_rejoin()
        (fault,) = faulty.call("list-faults")["faults"]
        requests = faulty.call("list-requests", client_id=group)["requests"]
        apis = [each["api"] for each in requests]
        return bool(fault["happened"]) and "SyncGroup" in apis[apis.index("Heartbeat") :]

    eventually(has_rejoined, "another generation")
    faulty.call("check-faults")
    client.close()


def test_apaches_tools(faulty: Faulty, jvm: Any, topic: str) -> None:
    """They use all brokers of a cluster; no request goes around the proxy."""

    def tool(name: str, *words: str, stdin: str = "") -> str:
        ran = jvm.tool(f"{TOOLS}.{name}", "--bootstrap-server", faulty.address, *words, stdin=stdin)
        output: str = ran.ok()
        return output

    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "6")
    described = tool("TopicCommand", "--describe", "--topic", topic)
    assert described.count("Leader: ") == 6
    faulty.call("clear-requests")
    faulty.call("add-fault", action="drop", api="Produce", topic=topic, after=True)
    values = "".join(f"key{n}:{n}\n" for n in range(60))
    properties = ("--property", "parse.key=true", "--property", "key.separator=:")
    tool("ConsoleProducer", "--topic", topic, *properties, stdin=values)
    limits = ("--max-messages", "60", "--timeout-ms", "30000", "--from-beginning")
    lines = tool("consumer.ConsoleConsumer", "--topic", topic, *limits).split()
    assert sorted(map(int, lines)) == list(range(60))
    faulty.call("check-faults")
    requests = faulty.call("list-requests", api="Produce", limit=10_000)
    leaders = {int(line) for line in _after(described, "Leader: ")}
    assert {each["node"] for each in requests["requests"]} == leaders


def _after(text: str, mark: str) -> list[str]:
    return [part.split()[0] for part in text.split(mark)[1:]]
