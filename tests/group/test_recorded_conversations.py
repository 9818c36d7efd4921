"""Conversations of consumers with Apache Kafka's coordinator: kwire answers and writes the same.

`scripts/record_consumer_groups.py` has recorded them. Compared are the epochs, the assignments and
the errors of all responses, and all records of the groups but for times. They show invariant 74.
"""

from pathlib import Path
from typing import Any

import pytest

from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.errors import KafkaError
from kwire.group.consumer import requests as consumer_requests
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.decision_builder import Client
from kwire.group.records import load
from tests.support.group.recordings import (
    conversations,
    create_topics,
    error_form,
    recorded_batches,
    response_form,
    written_batches,
)
from tests.support.group.sim import Sim

FILE = Path(__file__).parent.parent / "golden" / "consumer_groups.jsonl.gz"
CLIENT = Client(client_id="wire")


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
        return error_form(error)
    names = {topic_id: name for name, topic_id in sim.topics.ids.items()}
    return response_form(answer, names)


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


@pytest.mark.parametrize("talk", conversations(FILE), ids=lambda talk: str(talk["group"]))
def test_conversation_is_answered_and_written_as_by_kafka(talk: dict[str, Any]) -> None:
    sim = Sim()
    sim.consumer_settings = ConsumerSettings(assignment_interval_ms=0)
    create_topics(sim, talk)
    for number, step in enumerate(talk["steps"]):
        if "topic" in step:
            sim.topics.put(step["topic"], step["partitions"])
        else:
            assert play(sim, step["sent"]) == step["received"], (number, step["sent"])
    assert written_batches(sim, describe) == recorded_batches(talk, describe)
