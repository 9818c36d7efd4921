"""Conversations of consumers with Apache Kafka's coordinator: kwire answers and writes the same.

`scripts/record_consumer_groups.py` has recorded them. Compared are the epochs, the assignments and
the errors of all responses, and all records of the groups but for times. They show invariant 74.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.errors import KafkaError
from kwire.group.consumer import requests as consumer_requests
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.decision_builder import Client
from kwire.group.records import load
from kwire.records.iterate import batches, records
from tests.support.group.sim import Sim

FILE = Path(__file__).parent.parent / "golden" / "consumer_groups.jsonl.gz"
CLIENT = Client(client_id="wire")


def conversations() -> list[dict[str, Any]]:
    with gzip.open(FILE) as file:
        return [json.loads(line) for line in file]


def play(sim: Sim, sent: dict[str, Any]) -> dict[str, Any]:
    """Send a recorded request; return the response in the form of the recording."""
    sent = dict(sent)
    owned = sent.pop("owned")
    shape = ConsumerGroupHeartbeatRequest.TopicPartitions
    partitions = None
    if owned is not None:
        partitions = [
            shape(topic_id=sim.topics.ids[name], partitions=numbers)
            for name, numbers in owned.items()
        ]
    request = ConsumerGroupHeartbeatRequest(**sent, topic_partitions=partitions)
    try:
        consumer_requests.check_heartbeat(request, ("uniform", "range"))
        ticket = sim.send(
            "c", lambda shard, *when: consumer_requests.heartbeat(shard, request, CLIENT, *when)
        )
        answer = sim.reply(ticket)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": error.text,
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval_ms": 0,
            "assignment": None,
        }
    names = {topic_id: name for name, topic_id in sim.topics.ids.items()}
    assignment = None
    if answer.assignment is not None:
        assignment = {
            names[each.topic_id]: sorted(each.partitions)
            for each in answer.assignment.topic_partitions
        }
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "assignment": assignment,
    }


def describe(key: bytes, value: bytes | None) -> str:
    """Return a record as text, without times and with its lists in order."""
    record = load(key, value)
    assert record is not None
    if hasattr(record.value, "assignment_timestamp"):
        record.value.assignment_timestamp = 0
    for name in ("topic_partitions", "assigned_partitions", "partitions_pending_revocation"):
        for topic in getattr(record.value, name, ()):
            epochs = getattr(topic, "assignment_epochs", None) or [0] * len(topic.partitions)
            pairs = sorted(zip(topic.partitions, epochs, strict=True))
            topic.partitions = [number for number, _ in pairs]
            if hasattr(topic, "assignment_epochs"):
                topic.assignment_epochs = [epoch for _, epoch in pairs]
        if hasattr(record.value, name):
            getattr(record.value, name).sort(key=lambda topic: topic.topic_id)
    return f"{record.key} {record.value}"


@pytest.mark.parametrize("talk", conversations(), ids=lambda talk: str(talk["group"]))
def test_conversation_is_answered_and_written_as_by_kafka(talk: dict[str, Any]) -> None:
    sim = Sim()
    sim.consumer_settings = ConsumerSettings(assignment_interval_ms=0)
    for name, (topic_id, count) in talk["topics"].items():
        sim.topics.ids[name] = bytes.fromhex(topic_id)
        sim.topics.put(name, count)
    for number, step in enumerate(talk["steps"]):
        if "topic" in step:
            sim.topics.put(step["topic"], step["partitions"])
        else:
            assert play(sim, step["sent"]) == step["received"], (number, step["sent"])
    expected = [
        sorted(
            describe(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
            for key, value in batch
        )
        for batch in talk["records"]
    ]
    data = sim.log.data
    written = [
        sorted(describe(each.key or b"", each.value) for each in records(data, position, header))
        for position, header in batches(data)
    ]
    assert written == expected
