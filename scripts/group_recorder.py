"""The parts common to the recorders of groups' conversations: Kafka, its topics and its records."""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import kafka  # noqa: E402

from kwire.codec.messages.create_partitions import CreatePartitionsRequest  # noqa: E402
from kwire.codec.messages.create_topics import CreateTopicsRequest  # noqa: E402
from kwire.codec.messages.delete_topics import DeleteTopicsRequest  # noqa: E402
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest  # noqa: E402
from kwire.codec.messages.metadata import MetadataRequest  # noqa: E402
from kwire.coordinator.partitioning import partition_for  # noqa: E402
from kwire.records.iterate import batches, records  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402

PARTITIONS = 50


def record_to(
    target: Path,
    port: int,
    settings: Mapping[str, str],
    record_all: Callable[[WireClient], list[dict[str, Any]]],
) -> None:
    """Run Kafka, and write the conversations with the records that its coordinator stored."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "kafka"
        process = kafka.start(directory, port, settings)
        try:
            kafka.wait_for_port(port, process, directory / "server.log")
            with WireClient("127.0.0.1", port) as client:
                wait_coordinator(client)
                lines = record_all(client)
        finally:
            process.terminate()
            process.wait()
        for line in lines:
            line["records"] = stored_records(directory / "data", line["group"])
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        for line in lines:
            file.write(json.dumps(line, sort_keys=True).encode() + b"\n")


def wait_coordinator(client: WireClient) -> None:
    """Create the offsets topic, and wait until its partitions are loaded."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["any"])
    while client.call(request, 4).coordinators[0].error_code:
        time.sleep(0.2)
    time.sleep(5)


def create_topics(client: WireClient, counts: Mapping[str, int]) -> dict[str, str]:
    """Create topics with these partition counts; return their ids in hexadecimal."""
    shape = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            shape(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
            for name, count in counts.items()
        ],
        timeout_ms=10_000,
        validate_only=False,
    )
    client.call(request, 7)
    time.sleep(0.5)
    return {name: topic_id for name, topic_id, _ in describe_topics(client, counts)}


def describe_topics(client: WireClient, names: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return name, id and partition count of topics."""
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    answer = client.call(MetadataRequest(topics=topics), 12)
    return [(str(t.name), t.topic_id.hex(), len(t.partitions)) for t in answer.topics]


def grow_topic(client: WireClient, name: str, count: int) -> dict[str, Any]:
    """Add partitions to a topic; return the step, which the coordinator must have seen."""
    shape = CreatePartitionsRequest.CreatePartitionsTopic
    topic = shape(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
    client.call(request, 3)
    time.sleep(1)
    return {"topic": name, "partitions": count}


def delete_topic(client: WireClient, name: str) -> dict[str, Any]:
    """Delete a topic; return the step, which the coordinator must have seen."""
    shape = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(topics=[shape(name=name)], timeout_ms=10_000)
    client.call(request, 6)
    time.sleep(1)
    return {"topic": name, "partitions": 0}


def stored_records(data: Path, group: str) -> list[list[list[str | None]]]:
    """Return the batches of the group, each as keys and values in hexadecimal."""
    partition = partition_for(group, PARTITIONS)
    buf = (data / f"__consumer_offsets-{partition}" / f"{0:020d}.log").read_bytes()
    stored = []
    for position, header in batches(buf):
        batch = []
        for each in records(buf, position, header):
            assert each.key is not None
            size = int.from_bytes(each.key[2:4], "big")
            if each.key[4 : 4 + size] == group.encode():
                batch.append([each.key.hex(), None if each.value is None else each.value.hex()])
        if batch:
            stored.append(batch)
    return stored
