"""A varied load that leaves data of every kind in a data directory."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.confluent_kafka.clients import (
    admin,
    consumer,
    create,
    deliver,
    poll,
    producer,
)
from compat_tests.harness.wait import collect

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUPS = ("members", "alone")
BASE_MS = int(time.time() * 1000) - 60_000
"""The records are of today, because retention is on."""


def fill(address: str, segment_bytes: str = "internal_segment_bytes") -> None:
    """Write topics with all codecs, groups, deletions and changed settings; all acknowledged.

    ``segment_bytes`` names the setting that allows small segments.
    """
    small: dict[str, Any] = {segment_bytes: "9000"}
    create(address, "plain", 3, **small, index_interval_bytes="300")
    create(address, "stamped", 1, message_timestamp_type="LogAppendTime")
    create(address, "compacted", 1, cleanup_policy="compact", max_message_bytes="100000")
    create(address, "empty", 2)
    create(address, "cut", 1, **{**small, segment_bytes: "5000"})
    create(address, "doomed", 2)
    create(address, "again", 1)
    for number, codec in enumerate(CODECS):
        for idempotent in (False, True):
            send(address, codec, idempotent=idempotent, number=number)
    deliver(producer(address), [{"topic": "again", "value": b"old"}] * 5)
    _change(address)
    deliver(producer(address), [{"topic": "again", "value": b"new"}] * 3)
    _groups(address)


def send(address: str, codec: str, *, idempotent: bool, number: int) -> None:
    client = producer(address, compression_type=codec, enable_idempotence=idempotent, linger_ms=5)
    deliver(
        client,
        [
            {
                "topic": "plain",
                "partition": n % 3,
                "key": None if n % 7 == 0 else b"key-%d" % n,
                "value": None if n % 11 == 0 else f"{codec}-{n}".encode() * (n % 9),
                "headers": [("h", b"1"), ("n", None), ("e", b"")][: n % 4],
                "timestamp": BASE_MS + 1000 * n - number,
            }
            for n in range(60)
        ],
    )
    for topic in ("stamped", "compacted", "cut", "doomed"):
        deliver(
            client,
            [{"topic": topic, "partition": 0, "key": b"%d" % (n % 5), "value": b"v" * 100}
             for n in range(40)],
        )  # fmt: skip


def _change(address: str) -> None:
    client = admin(address)
    for future in client.delete_topics(["doomed", "again"], operation_timeout=30).values():
        future.result(30)
    create(address, "again", 1)
    moved = client.delete_records([TopicPartition("cut", 0, 123)])
    for future in moved.values():
        assert future.result(30).low_watermark == 123
    changed = ConfigResource(
        ResourceType.TOPIC,
        "plain",
        incremental_configs=[
            ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    for future in client.incremental_alter_configs([changed]).values():
        future.result(30)
    from confluent_kafka.admin import NewPartitions

    for future in client.create_partitions([NewPartitions("empty", 4)]).values():
        future.result(30)


def _groups(address: str) -> None:
    with consumer(address, "members") as reader:
        reader.subscribe(["plain"])
        collect(lambda: poll(reader), 600)
        reader.commit(asynchronous=False)
    with consumer(address, "alone") as reader:
        places = [TopicPartition("plain", 1, 17, metadata="by hand"), TopicPartition("cut", 0, 130)]
        reader.commit(offsets=places, asynchronous=False)
