"""Quotas on bytes, as librdkafka sees them (KIP-13), and on connections (KIP-612)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from compat_tests.confluent_kafka.clients import consumer, create, deliver, poll, producer
from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.testing.wire import Closed, WireClient

RATE = 100_000
RECORDS = [bytes(5_000)] * 80
"""400 KB, which take at least two seconds at this rate after the first second's 100 KB."""
LEAST_SECONDS = 2.0
SMALL_BATCHES: dict[str, Any] = {"linger_ms": 0, "batch_size": 10_000, "compression_type": "none"}
"""Batches that fit into the quota: Apache Kafka never sends a consumer a larger one."""


@pytest.fixture
def strict(broker_kind: str, tmp_path: Path) -> Iterator[Broker]:
    """Return a broker that measures rates over two windows: one second may be used at once."""
    broker = make_broker(broker_kind, tmp_path / "broker", {"quota.window.num": "2"})
    try:
        yield broker
    finally:
        broker.close()


def set_quota(broker: Broker, client_id: str, quota: str, rate: float) -> None:
    with connect(broker.address) as client:
        change_quota(client, ("client-id", client_id), quota, rate)


def change_quota(
    client: WireClient, entity: tuple[str, str], quota: str, rate: float | None
) -> None:
    """Set a quota of an entity, given by type and name, or remove it."""
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type=entity[0], entity_name=entity[1])],
                ops=[entry.OpData(key=quota, value=rate or 0.0, remove=rate is None)],
            )
        ],
        validate_only=False,
    )
    assert [e.error_code for e in client.call(request, 1).entries] == [0]


def test_address_over_its_rate_of_connections_is_disconnected(strict: Broker) -> None:
    """KIP-612: a client that reconnects again and again is slowed down, open connections go on."""
    host, port = strict.address.split(":")
    with connect(strict.address) as operator:
        change_quota(operator, ("ip", host), "connection_creation_rate", 5.0)
        eventually(lambda: is_limited(host, int(port)), "connections are refused")
        change_quota(operator, ("ip", host), "connection_creation_rate", None)
        free = "the limit is gone"
        eventually(lambda: count_answered(host, int(port), 20) == 20, free)


def test_limit_of_an_address_changes_while_the_broker_runs(strict: Broker) -> None:
    """`max.connections.per.ip.overrides` shuts an address out, and lets it in again."""
    host, port = strict.address.split(":")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    setting = "max.connections.per.ip.overrides"

    def change(client: WireClient, value: str | None) -> None:
        operation = 1 if value is None else 0
        config = resource.AlterableConfig(name=setting, config_operation=operation, value=value)
        broker = resource(resource_type=4, resource_name="", configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[broker], validate_only=False)
        assert [r.error_code for r in client.call(request, 1).responses] == [0]

    with connect(strict.address) as operator:
        change(operator, f"{host}:2")
        eventually(lambda: count_answered(host, int(port), 3) == 1, "room for one more")
        change(operator, None)
        eventually(lambda: count_answered(host, int(port), 3) == 3, "room for all")


def is_limited(host: str, port: int) -> bool:
    """Return whether an address over its rate of five a second gets some of its connections only.

    A machine that stops for seconds meanwhile lets all of them be in time: the next attempt is made
    when the broker's two windows of a second are over.
    """
    answered = count_answered(host, port, 20)
    if 5 <= answered <= 15:
        return True
    time.sleep(3)
    return False


def count_answered(host: str, port: int, count: int) -> int:
    """Open connections all at once; return on how many of them a request is answered."""
    answered = 0
    with ExitStack() as stack:
        clients = [stack.enter_context(WireClient(host, port)) for _ in range(count)]
        for client in clients:
            with suppress(Closed, OSError):
                client.call(ApiVersionsRequest(), 0)
                answered += 1
    return answered


def test_client_over_its_request_time_is_throttled(strict: Broker, jvm: Jvm) -> None:
    """KIP-124: Kafka's tool sets the quota; the responses name the time, and others go on."""
    tool, entity = (
        "kafka.admin.ConfigCommand",
        ("--entity-type", "clients", "--entity-name", "busy"),
    )
    server = ("--bootstrap-server", strict.address)
    added = ("--alter", "--add-config", "request_percentage=0.01")
    jvm.tool(tool, *server, *entity, *added).ok()
    assert "request_percentage=0.01" in jvm.tool(tool, *server, *entity, "--describe").ok()
    host, port = strict.address.split(":")

    def throttle_times(client_id: str) -> list[int]:
        request = MetadataRequest(topics=None)
        with WireClient(host, int(port), client_id=client_id) as client:
            return [client.call(request, 12).throttle_time_ms for _ in range(5)]

    eventually(lambda: max(throttle_times("busy")) > 100, "a throttle time")
    started = time.monotonic()
    assert 0 < max(throttle_times("busy")) <= 1000, "one window at most"
    assert time.monotonic() - started > 0.5, "the connection was muted"
    assert throttle_times("idle") == [0] * 5


def test_producer_keeps_to_its_quota_and_others_do_not_wait(strict: Broker, topic: str) -> None:
    """Invariant 104: librdkafka is told of the throttle, and no record is lost."""
    create(strict.address, topic)
    set_quota(strict, "limited", "producer_byte_rate", RATE)
    throttled: list[Any] = []
    client = producer(
        strict.address, client_id="limited", throttle_cb=throttled.append, **SMALL_BATCHES
    )
    started = time.monotonic()
    delivered = deliver(client, [{"topic": topic, "value": value} for value in RECORDS])
    assert time.monotonic() - started >= LEAST_SECONDS
    assert sorted(m.offset() for m in delivered) == list(range(len(RECORDS)))
    client.poll(1)
    assert any(event.throttle_time > 0 for event in throttled)
    free = producer(strict.address, client_id="free", throttle_cb=throttled.append, **SMALL_BATCHES)
    throttled.clear()
    deliver(free, [{"topic": topic, "value": value} for value in RECORDS])
    free.poll(0)
    assert throttled == []


def test_consumer_keeps_to_its_quota(strict: Broker, topic: str) -> None:
    create(strict.address, topic)
    client = producer(strict.address, **SMALL_BATCHES)
    deliver(client, [{"topic": topic, "value": value} for value in RECORDS])
    set_quota(strict, "limited", "consumer_byte_rate", RATE)
    throttled: list[Any] = []
    started = time.monotonic()
    with consumer(strict.address, "g", client_id="limited", throttle_cb=throttled.append) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        offsets: list[int] = []
        while len(offsets) < len(RECORDS):
            offsets += [m.offset() for m in poll(reader)]
    assert offsets == list(range(len(RECORDS)))
    assert time.monotonic() - started >= LEAST_SECONDS
    assert any(event.throttle_time > 0 for event in throttled)
