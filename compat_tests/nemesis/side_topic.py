"""A topic that is created, written, read and deleted again and again under one name.

Invariant 40: nothing of the deleted topic of that name appears in the next one.
"""

from __future__ import annotations

import time
from typing import Any, Final

import attrs
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.durability.observations import Place
from compat_tests.durability.recording import HARMLESS
from compat_tests.nemesis.clients import IMPATIENT, READER_SETTINGS, WRITER_SETTINGS

SIDE_TOPIC: Final = "side"
PARTITIONS: Final = 3
RECORDS: Final = 300
CALL_SECONDS: Final = 10.0


@attrs.define(eq=False)
class SideTopic:
    """The topic's present incarnation, and the records acknowledged in it."""

    address: str
    problems: list[str]
    number: int = 0
    """The number of the incarnation."""
    _acknowledged: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    """The values by partition and offset."""

    def _client(self) -> AdminClient:
        settings: dict[str, Any] = {"bootstrap.servers": self.address, "log_level": 0, **IMPATIENT}
        return AdminClient(settings)

    def create(self) -> None:
        """Request the topic; raise KafkaException if it may not exist."""
        self.number += 1
        self._acknowledged.clear()
        client = self._client()
        new = NewTopic(SIDE_TOPIC, PARTITIONS, 3)
        client.create_topics([new], request_timeout=CALL_SECONDS)[SIDE_TOPIC].result(
            2 * CALL_SECONDS
        )

    def delete(self) -> None:
        """Request the deletion; raise KafkaException if the topic may still exist."""
        client = self._client()
        answers = client.delete_topics([SIDE_TOPIC], request_timeout=CALL_SECONDS)
        try:
            answers[SIDE_TOPIC].result(2 * CALL_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise

    def write(self) -> None:
        """Write records for some seconds, and note those that are acknowledged with an offset."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "enable.idempotence": True,
            "log_level": 0,
            "message.timeout.ms": int(CALL_SECONDS * 1000),
            **WRITER_SETTINGS,
        }
        producer = Producer(settings)

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            if error is None and message.offset() >= 0:
                self._acknowledged[message.partition(), message.offset()] = message.value()

        for number in range(RECORDS):
            value = b"%d-%d" % (self.number, number)
            producer.produce(
                SIDE_TOPIC, value, partition=number % PARTITIONS, on_delivery=on_delivery
            )
        producer.flush(2 * CALL_SECONDS)
        producer.purge()
        producer.flush(1)

    def is_read(self) -> bool:
        """Read the topic and check its records; return False if its ends were not reached."""
        records, is_whole = self._read()
        foreign = {v for v in records.values() if not v.startswith(b"%d-" % self.number)}
        if foreign:
            self.problems.append(f"side topic {self.number} has {sorted(foreign)[:5]}")
        lost = {place for place in self._acknowledged if is_whole and place not in records}
        if lost:
            self.problems.append(f"side topic {self.number} has lost {sorted(lost)[:5]}")
        for place in self._acknowledged.keys() & records.keys():
            if records[place] != self._acknowledged[place]:
                self.problems.append(
                    f"side topic {self.number} has {records[place]!r} at {place},"
                    f" acknowledged was {self._acknowledged[place]!r}"
                )
        return is_whole

    def _read(self) -> tuple[dict[tuple[int, int], bytes], bool]:
        """Return the records by partition and offset, and whether all ends were reached."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "group.id": "side",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
            **READER_SETTINGS,
        }
        consumer: Any = Consumer(settings)
        consumer.assign([TopicPartition(SIDE_TOPIC, number, 0) for number in range(PARTITIONS)])
        records: dict[tuple[int, int], bytes] = {}
        at_end: set[Place] = set()
        until = time.monotonic() + CALL_SECONDS
        try:
            while len(at_end) < PARTITIONS and time.monotonic() < until:
                message = consumer.poll(0.2)
                error = None if message is None else message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    at_end.add((SIDE_TOPIC, message.partition()))
                elif error is not None and error.code() not in HARMLESS:
                    return records, False
                elif error is None and message is not None:
                    records[message.partition(), message.offset()] = message.value()
        finally:
            consumer.close()
        return records, len(at_end) == PARTITIONS
