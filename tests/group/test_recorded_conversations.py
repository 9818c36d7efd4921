"""Conversations of consumers with Apache Kafka's coordinator: kwire answers and writes the same.

`scripts/record_consumer_groups.py` has recorded them. Compared are the epochs, the assignments and
the errors of all responses, and all records of the groups but for times. They show invariant 74.
"""

from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.consumer_group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
)
from kwire.codec.messages.offset_records import GroupMetadataValue
from kwire.errors import InvalidRegularExpression, KafkaError
from kwire.group.consumer import requests as consumer_requests
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.decision_builder import Client
from kwire.group.records import load
from tests.support.group.recordings import (
    assignment_form,
    classic_form,
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
TIMES = ("assignment_timestamp", "current_state_timestamp", "timestamp")


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


def without_reason(received: dict[str, Any]) -> dict[str, Any]:
    """Return a response without the words of the library of regular expressions."""
    if received["error_code"] != InvalidRegularExpression.code:
        return received
    message = received["error_message"].partition(":")[0]
    return {**received, "error_message": message}


def play_classic(sim: Sim, step: dict[str, Any]) -> dict[str, Any]:
    """Send a recorded request of a classic member; return the response as it is recorded."""
    fields = dict(step["fields"])
    group, member_id = fields["group_id"], fields.get("member_id", "")
    instance, generation = fields.get("group_instance_id"), fields.get("generation_id", -1)
    # A new member gets the id that Kafka drew.
    drawn = step["received"].get("member_id", "").removeprefix(f"{instance or CLIENT.client_id}-")
    sim.ids = repeat(drawn)
    match step["api"]:
        case "JoinGroup":
            ticket = sim.join(
                CLIENT.client_id,
                member_id,
                group=group,
                instance=instance,
                protocols={"range": bytes.fromhex(fields["metadata"])},
                session_ms=fields["session_timeout_ms"],
                rebalance_ms=fields["rebalance_timeout_ms"],
                version=step["version"],
            )
        case "SyncGroup":
            assignments = {
                each: bytes.fromhex(data) for each, data in fields["assignments"].items()
            }
            ticket = sim.sync(
                CLIENT.client_id, member_id, generation, assignments, group=group, instance=instance
            )
        case "Heartbeat":
            ticket = sim.heartbeat(
                CLIENT.client_id, member_id, generation, group=group, instance=instance
            )
        case _:
            ticket = sim.leave(CLIENT.client_id, (member_id, instance), group=group)
    sim.fire_due()  # A new group waits for its first members, here for no time.
    try:
        return classic_form(sim.reply(ticket))
    except KafkaError as error:
        return {"error_code": error.code}


def describe(key: bytes, value: bytes | None) -> str:
    """Return a record as text, without times and with its lists in order."""
    record = load(key, value)
    assert record is not None
    for name in TIMES:
        if hasattr(record.value, name):
            setattr(record.value, name, 0)
    match record.value:
        case ConsumerGroupRegularExpressionValue():
            record.value.version = 0  # It counts the records of the cluster's metadata.
            record.value.topics.sort()
        case GroupMetadataValue():
            record.value.members.sort(key=lambda member: member.member_id)
            for member in record.value.members:
                member.assignment = str(assignment_form(member.assignment)).encode()
        case ConsumerGroupMemberMetadataValue():
            record.value.subscribed_topic_names.sort()
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
    settings = talk["settings"]
    sim.consumer_settings = ConsumerSettings(
        session_timeout_ms=settings.get("consumer.session.timeout.ms", 3_600_000),
        heartbeat_interval_ms=settings.get("consumer.heartbeat.interval.ms", 5_000),
        assignment_interval_ms=0,
    )
    create_topics(sim, talk)
    for number, step in enumerate(talk["steps"]):
        sim.advance(step["at"] - sim.now)
        if "topic" in step:
            if "id" in step:
                sim.topics.ids[step["topic"]] = bytes.fromhex(step["id"])
            sim.topics.put(step["topic"], step["partitions"])
        elif "sent" in step:
            received = without_reason(play(sim, step["sent"]))
            assert received == without_reason(step["received"]), (number, step["sent"])
        else:
            assert play_classic(sim, step) == step["received"], (number, step)
    sim.advance(talk["end_at"] - sim.now)
    assert written_batches(sim, describe) == recorded_batches(talk, describe)
