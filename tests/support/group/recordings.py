"""Recorded conversations of members of groups with Apache Kafka's coordinator.

A line of a recording is a conversation: its topics, the requests with their responses, and the
records that the coordinator wrote.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kwire.codec.compile import decode
from kwire.codec.messages.consumer_protocol import ConsumerProtocolAssignment
from kwire.codec.messages.join_group import JoinGroupResponse
from kwire.codec.messages.sync_group import SyncGroupResponse
from kwire.errors import KafkaError
from kwire.records.iterate import batches, records
from tests.support.group.sim import Sim

Describe = Callable[[bytes, bytes | None], str]
"""Returns a record as text, without what differs between coordinators."""


def conversations(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file) as lines:
        return [json.loads(line) for line in lines]


def response_form(answer: Any, names: Mapping[bytes, str]) -> dict[str, Any]:
    """Return a heartbeat's response as it is recorded; ``names`` are those of topics, by id."""
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


def error_form(error: KafkaError) -> dict[str, Any]:
    """Return the response to a heartbeat that is refused, as it is recorded."""
    return {
        "error_code": error.code,
        "error_message": error.text,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval_ms": 0,
        "assignment": None,
    }


def classic_form(answer: Any) -> dict[str, Any]:
    """Return the response to a request of a classic member as it is recorded."""
    if answer.error_code:
        return {"error_code": answer.error_code}
    if isinstance(answer, JoinGroupResponse):
        members = [(m.member_id, m.group_instance_id, m.metadata.hex()) for m in answer.members]
        return {
            "error_code": 0,
            "generation_id": answer.generation_id,
            "protocol_name": answer.protocol_name,
            "leader": answer.leader,
            "member_id": answer.member_id,
            "members": sorted(map(list, members)),
        }
    if isinstance(answer, SyncGroupResponse):
        return {"error_code": 0, "assignment": assignment_form(answer.assignment)}
    codes = [member.error_code for member in getattr(answer, "members", ())]
    return {"error_code": 0, "members": codes}


def assignment_form(data: bytes) -> dict[str, Any]:
    """Return the assignment of a classic member: its version, and partitions by topic."""
    version = int.from_bytes(data[:2], "big")
    assignment = decode(ConsumerProtocolAssignment, bytes(data[2:]), version)
    partitions = {t.topic: sorted(t.partitions) for t in assignment.assigned_partitions}
    return {"version": version, "partitions": dict(sorted(partitions.items()))}


def create_topics(sim: Sim, talk: Mapping[str, Any]) -> None:
    """Create the topics of a conversation, with their recorded ids."""
    sim.topics.rack = talk.get("rack")
    for name, (topic_id, count) in talk["topics"].items():
        sim.topics.ids[name] = bytes.fromhex(topic_id)
        sim.topics.put(name, count)


def recorded_batches(talk: Mapping[str, Any], describe: Describe) -> list[list[str]]:
    """Return the records that Kafka wrote, batch by batch."""
    return [
        sorted(
            describe(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
            for key, value in batch
        )
        for batch in talk["records"]
    ]


def written_batches(sim: Sim, describe: Describe) -> list[list[str]]:
    """Return the records that kwire wrote, batch by batch."""
    data = sim.log.data
    return [
        sorted(describe(each.key or b"", each.value) for each in records(data, position, header))
        for position, header in batches(data)
    ]
