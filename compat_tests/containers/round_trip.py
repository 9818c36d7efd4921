"""Records to a broker and back, with a client outside of the container."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

RECORDS = 100
SECONDS = 60


def round_trip(address: str, topic: str, group: str) -> int:
    """Produce records, read the topic as a member of a new group, and return its record count.

    The count includes what was in the topic before. Fails if a record is missing.
    """
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)[1]
    for offset in range(end):
        message = consumer.poll(SECONDS)
        assert message is not None, f"only {offset} of {end} records"
        assert message.error() is None, message.error()
        assert message.value() == str(offset % RECORDS).encode()
    consumer.close()
    return int(end)
