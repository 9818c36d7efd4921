"""The state of a broker as clients see it, as plain values to compare two brokers by."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka._model import TopicCollection
from confluent_kafka.admin import ConfigResource, ConfigSource, OffsetSpec, ResourceType

from compat_tests.confluent_kafka.clients import admin, is_end
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from kwire.codec.messages.offset_fetch import OffsetFetchRequest

Partition = tuple[str, int]
DYNAMIC = {ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
TRANSIENT = (KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION)
SPOTS = {
    "start": (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
    "end": (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
    "stable": (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
    "youngest": (OffsetSpec.max_timestamp(), IsolationLevel.READ_UNCOMMITTED),
}


def topics(address: str) -> dict[str, tuple[str, int, bool]]:
    """Return each topic's id, partition count and whether all partitions have a leader."""
    client = admin(address)
    names = list(client.list_topics(timeout=30).topics)
    if not names:
        return {}
    described = client.describe_topics(TopicCollection(names))
    states = {}
    for name, future in described.items():
        topic = future.result(30)
        led = all(p.leader is not None and p.leader.id >= 0 for p in topic.partitions)
        states[name] = (str(topic.topic_id), len(topic.partitions), led)
    return states


def configs(address: str, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the topics' own settings."""
    client = admin(address)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = client.describe_configs(resources)
    return {
        resource.name: {
            entry.name: str(entry.value)
            for entry in future.result(30).values()
            if entry.source in DYNAMIC
        }
        for resource, future in answers.items()
    }


def offsets(address: str, partitions: Iterable[Partition]) -> dict[str, dict[Partition, int]]:
    """Return start, end, last stable and latest-timestamp offset of partitions."""
    client = admin(address)
    places = [TopicPartition(*partition) for partition in partitions]

    def ask(spec: OffsetSpec, isolation: IsolationLevel) -> dict[Partition, int] | None:
        answers = client.list_offsets(dict.fromkeys(places, spec), isolation_level=isolation)
        try:
            return {(at.topic, at.partition): f.result(30).offset for at, f in answers.items()}
        except KafkaException as error:  # A broker that just started has a new epoch.
            if error.args[0].code() not in TRANSIENT:
                raise
            return None

    return {
        name: eventually(partial(ask, *spot), f"offsets: {name}") for name, spot in SPOTS.items()
    }


def records(
    address: str, partitions: Iterable[Partition], isolation: str = "read_uncommitted"
) -> dict[Partition, list[tuple[Any, ...]]]:
    """Return offset, key, value, headers and timestamp of every record."""
    client = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "fetch.wait.max.ms": 100,
            "check.crcs": True,
        }
    )
    places = list(partitions)
    records_by_place: dict[Partition, list[tuple[Any, ...]]] = {place: [] for place in places}
    todo = set(places)
    deadline = time.monotonic() + 120
    try:
        client.assign([TopicPartition(*place, 0) for place in places])
        while todo:
            for message in client.consume(2000, 1.0):
                partition = message.partition()
                if partition is None:
                    continue  # An error of no partition, such as a lost connection.
                place = str(message.topic()), partition
                if is_end(message):
                    todo.discard(place)
                if message.error() is not None:
                    continue  # The client goes on after a passing error.
                value, headers = message.value(), message.headers()
                records_by_place[place].append(
                    (message.offset(), message.key(), value, headers, message.timestamp())
                )
            assert time.monotonic() < deadline, f"not read to the end: {todo}"
    finally:
        client.close()
    return records_by_place


def committed_offsets(
    address: str, groups: Iterable[str]
) -> dict[str, dict[Partition, tuple[int, str]]]:
    """Return the offsets and metadata that groups have committed.

    It sends raw requests: librdkafka's Python binding reads past the end of the metadata's text.
    """
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    offsets_by_group = {}
    with connect(address) as client:
        for group in groups:
            request = OffsetFetchRequest(groups=[shape(group_id=group, topics=None)])

            def ask(request=request):
                (answer,) = client.call(request, 9).groups
                return answer if answer.error_code == 0 else None  # Its coordinator is loading.

            answer = eventually(ask, f"offsets of {group}")
            offsets_by_group[group] = {
                (topic.name, p.partition_index): (p.committed_offset, p.metadata)
                for topic in answer.topics
                for p in topic.partitions
            }
    return offsets_by_group


def everything(address: str, groups: Iterable[str]) -> Mapping[str, Any]:
    """Return all of the above, for every topic that is not internal."""
    listed = eventually(
        lambda: (
            listing
            if (listing := topics(address)) and all(t[2] for t in listing.values())
            else None
        ),
        "leaders of all partitions",
    )
    plain = {name: topic for name, topic in listed.items() if not name.startswith("__")}
    places = [(name, n) for name, (_, count, _) in sorted(plain.items()) for n in range(count)]
    return {
        "topics": listed,
        "configs": configs(address, listed),
        "offsets": offsets(address, places),
        "records": records(address, places),
        "committed": committed_offsets(address, groups),
    }
