"""Clients that write and read while the nodes of a cluster are restarted one by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import attrs
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from compat_tests.cluster.nodes import Cluster
from compat_tests.harness.wait import eventually

GAP_S = 20.0
"""The longest time without an acknowledged record: several elections on a slow machine."""


@attrs.define(eq=False)
class Load:
    """A producer and a consumer that run until they are stopped."""

    settings: dict[str, Any]
    topic: str
    name: str
    acknowledged: list[bytes] = attrs.field(factory=list)
    acknowledged_at: list[float] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    values: set[bytes] = attrs.field(factory=set)
    _end: threading.Event = attrs.field(factory=threading.Event)
    _threads: list[threading.Thread] = attrs.field(factory=list)

    def start(self) -> None:
        self._threads = [threading.Thread(target=run) for run in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(120)

    @property
    def gap_s(self) -> float:
        pairs = zip(self.acknowledged_at, self.acknowledged_at[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)

    def _produce(self) -> None:
        producer = Producer({**self.settings, "enable.idempotence": True})
        number = 0
        while not self._end.is_set():
            producer.produce(self.topic, f"{self.name}-{number}", on_delivery=self._on_delivery)
            number += 1
            producer.poll(0.02)
        producer.flush(60)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged.append(message.value() or b"")
        self.acknowledged_at.append(time.monotonic())

    def _consume(self) -> None:
        own = {"group.id": "readers", "auto.offset.reset": "earliest"}
        consumer = Consumer({**self.settings, **own})
        consumer.subscribe([self.topic])
        while not self._end.is_set():
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                self.values.add(message.value() or b"")
        consumer.close()


def wait_in_sync(cluster: Cluster, clients: Mapping[str, Any]) -> None:
    """Wait until all brokers are there and all replicas are in sync."""
    count = len(cluster.brokers)

    def is_in_sync() -> bool:
        try:
            metadata = AdminClient(dict(clients)).list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [p for t in metadata.topics.values() for p in t.partitions.values()]
        return len(metadata.brokers) == count and all(len(p.isrs) == count for p in partitions)

    eventually(is_in_sync, cluster.tails, 120)
