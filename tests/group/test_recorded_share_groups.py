"""Conversations of members of share groups with Apache Kafka's coordinator, played to kwire.

`scripts/record_share_groups.py` has recorded them. Compared are the epochs, the assignments and the
errors of all responses, and all records of the groups but for times. They show invariant 74.
"""

from pathlib import Path
from typing import Any

import pytest

from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.errors import KafkaError
from kwire.group.decision_builder import Client
from kwire.group.records import load
from kwire.group.share import requests
from kwire.group.share.heartbeat import check
from tests.support.group.recordings import (
    conversations,
    create_topics,
    error_form,
    recorded_batches,
    response_form,
    written_batches,
)
from tests.support.group.sim import Sim

FILE = Path(__file__).parent.parent / "golden" / "share_groups.jsonl.gz"
CLIENT = Client(client_id="wire")


def play(sim: Sim, sent: dict[str, Any]) -> dict[str, Any]:
    """Send a recorded request; return the response in the form of the recording.

    The share partitions that the coordinator wants initialized are initialized at once.
    """
    request = ShareGroupHeartbeatRequest(**sent)
    try:
        check(request)
        ticket = sim.send(
            "c", lambda shard, *when: requests.heartbeat(shard, request, CLIENT, *when)
        )
        beaten = sim.reply(ticket)
    except KafkaError as error:
        return error_form(error)
    work, answer = beaten.initialization, beaten.response
    if work is not None:
        sim.send(
            "c",
            lambda shard, *when: requests.finish_initialization(
                shard, work.group_id, work.numbers, *when
            ),
        )
    names = {topic_id: name for name, topic_id in sim.topics.ids.items()}
    return response_form(answer, names)


def describe(key: bytes, value: bytes | None) -> str:
    """Return a record as text, without times and with its lists in order."""
    record = load(key, value)
    assert record is not None
    if hasattr(record.value, "assignment_timestamp"):
        record.value.assignment_timestamp = 0
    for name in (
        "topic_partitions",
        "assigned_partitions",
        "initializing_topics",
        "initialized_topics",
        "deleting_topics",
    ):
        topics = getattr(record.value, name, [])
        for topic in topics:
            if hasattr(topic, "partitions"):
                topic.partitions.sort()
        topics.sort(key=lambda topic: topic.topic_id)
    return f"{record.key} {record.value}"


@pytest.mark.parametrize("talk", conversations(FILE), ids=lambda talk: str(talk["group"]))
def test_conversation_is_answered_and_written_as_by_kafka(talk: dict[str, Any]) -> None:
    sim = Sim()
    create_topics(sim, talk)
    for number, step in enumerate(talk["steps"]):
        if "sent" in step:
            assert play(sim, step["sent"]) == step["received"], (number, step["sent"])
        elif step["partitions"]:
            sim.topics.put(step["topic"], step["partitions"])
        else:
            sim.topics.delete(step["topic"])
            for decide in sim.groups.remove_deleted_topics(
                {sim.topics.ids[step["topic"]]: step["topic"]}
            ):
                sim.perform(decide(sim.moment))
    assert written_batches(sim, describe) == recorded_batches(talk, describe)
