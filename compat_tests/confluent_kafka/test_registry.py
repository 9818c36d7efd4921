"""Serializers of confluent-kafka with the registry of kwire.testing, through the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from compat_tests.confluent_kafka.clients import create, producer, read
from compat_tests.harness.broker import Broker
from kwire.testing import SchemaRegistry

ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}'
WITH_PRICE = ORDER.replace("]", ',{"name":"price","type":"int","default":5}]')
JSON_ORDER = '{"title":"Order","type":"object","properties":{"id":{"type":"string"}}}'


@pytest.fixture
def client() -> Iterator[SchemaRegistryClient]:
    with SchemaRegistry(login="me:secret") as registry:
        yield SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": "me:secret"})


def through_broker(broker: Broker, topic: str, value: bytes) -> bytes:
    """Produce a value and return it as a consumer reads it."""
    create(broker.address, topic)
    sender = producer(broker.address)
    sender.produce(topic, value)
    assert sender.flush(30) == 0
    (message,) = read(broker.address, topic, 1)
    result: bytes = message.value()
    return result


def test_avro_is_read_by_a_newer_schema(
    broker: Broker, topic: str, client: SchemaRegistryClient
) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    value = AvroSerializer(client, ORDER)({"id": "book"}, context)
    assert value is not None
    reader = AvroDeserializer(client, WITH_PRICE)
    assert reader(through_broker(broker, topic, value), context) == {"id": "book", "price": 5}
    assert client.get_latest_version(f"{topic}-value").schema.schema_str is not None


def test_json_is_read_again(broker: Broker, topic: str, client: SchemaRegistryClient) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    value = JSONSerializer(JSON_ORDER, client)({"id": "book"}, context)
    assert value is not None
    reader: Any = JSONDeserializer(JSON_ORDER, schema_registry_client=client)
    assert reader(through_broker(broker, topic, value), context) == {"id": "book"}


def test_an_incompatible_schema_is_refused(client: SchemaRegistryClient) -> None:
    client.register_schema("orders-value", Schema(ORDER, "AVRO"))
    changed = Schema(ORDER.replace('"string"', '"int"'), "AVRO")
    assert not client.test_compatibility("orders-value", changed)
    with pytest.raises(SchemaRegistryError) as refusal:
        client.register_schema("orders-value", changed)
    assert (refusal.value.http_status_code, refusal.value.error_code) == (409, 409)
    client.set_compatibility("orders-value", "NONE")
    assert client.register_schema("orders-value", changed) == 2
    with pytest.raises(SchemaRegistryError) as unknown:
        client.get_latest_version("other-value")
    assert unknown.value.error_code == 40401
