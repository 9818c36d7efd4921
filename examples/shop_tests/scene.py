"""The topics of the shop and its processes, as the tests see them."""

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from kwire.testing import Broker


class Scene:
    """The topics of the shop, as its users see them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.settings: dict[str, Any] = broker.client_settings()

    def send_orders(self, *ids: str) -> None:
        for order_id in ids:
            self.send(order_id, json.dumps({"id": order_id, "price": 100}))

    def send(self, key: str, value: str, partition: int = 0) -> None:
        producer = Producer(self.settings)
        producer.produce("orders", value, key, partition)
        assert producer.flush(30) == 0

    def read(self, topic: str) -> list[Message]:
        """Return all committed records of a topic, those of one partition in order."""
        settings = {**self.settings, "group.id": "reader", "enable.partition.eof": True}
        consumer = Consumer(settings)
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        records: list[Message] = []
        end_count = 0
        while end_count < len(partitions):
            message = consumer.poll(30)
            assert message is not None, f"cannot read {topic}"
            if message.error() is None:
                records.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                end_count += 1
        consumer.close()
        return records

    def keys(self, topic: str) -> list[str]:
        return [message.key().decode() for message in self.read(topic)]


def run_until(condition: Callable[[], bool], *apps: Any, seconds: float = 30) -> None:
    """Run processes of the shop, in turns, until a condition is met; fail after some seconds."""
    begin = perf_counter()
    while not condition():
        assert perf_counter() < begin + seconds, f"not met after {seconds} s"
        for app in apps:
            app.run_once()
