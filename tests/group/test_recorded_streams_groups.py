"""Conversations of members of streams groups with Apache Kafka's coordinator, played to kwire.

`scripts/record_streams_groups.py` has recorded them. Compared are epochs, tasks, statuses,
endpoints and errors of all responses, and all records of the groups but for times. They show
invariant 74.
"""

from pathlib import Path
from typing import Any

import pytest

from kwire.codec.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse
from kwire.errors import KafkaError
from kwire.group.decision_builder import Client
from kwire.group.records import load
from kwire.group.streams import requests
from kwire.group.streams.checks import check_heartbeat
from kwire.group.streams.settings import StreamsSettings
from tests.support.group.recordings import (
    conversations,
    create_topics,
    recorded_batches,
    written_batches,
)
from tests.support.group.sim import Sim
from tests.support.group.streams import request_from, streams_form

FILE = Path(__file__).parent.parent / "golden" / "streams_groups.jsonl.gz"
CLIENT = Client(client_id="wire")
SETTINGS = StreamsSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0, standby_count=1)


def with_words_in_order(received: dict[str, Any]) -> dict[str, Any]:
    """Return a response whose texts name topics in order; Kafka follows a hash table."""
    statuses = []
    for code, text in received["statuses"]:
        head, colon, names = text.partition("missing: ")
        statuses.append([code, f"{head}{colon}{', '.join(sorted(names.split(', ')))}"])
    return {**received, "statuses": statuses}


def play(sim: Sim, sent: dict[str, Any]) -> dict[str, Any]:
    """Send a recorded request; return the response in the form of the recording."""
    request = request_from(sent)
    try:
        check_heartbeat(request)
        ticket = sim.send(
            "c", lambda shard, *when: requests.heartbeat(shard, request, CLIENT, *when)
        )
        beaten = sim.reply(ticket)
    except KafkaError as error:
        return streams_form(
            StreamsGroupHeartbeatResponse(
                error_code=error.code,
                error_message=error.text,
                member_id="",
                member_epoch=0,
                heartbeat_interval_ms=0,
                task_offset_interval_ms=0,
                endpoint_information_epoch=0,
            )
        )
    endpoints = None
    if beaten.endpoints is not None:
        endpoints = [(m.endpoint.host, m.endpoint.port) for m in beaten.endpoints.members]
    return streams_form(beaten.response, endpoints)


def describe(key: bytes, value: bytes | None) -> str:
    """Return a record as text, without times."""
    record = load(key, value)
    assert record is not None
    if hasattr(record.value, "assignment_timestamp"):
        record.value.assignment_timestamp = 0
    return f"{record.key} {record.value}"


@pytest.mark.parametrize("talk", conversations(FILE), ids=lambda talk: str(talk["group"]))
def test_conversation_is_answered_and_written_as_by_kafka(talk: dict[str, Any]) -> None:
    sim = Sim(streams_settings=SETTINGS)
    create_topics(sim, talk)
    for number, step in enumerate(talk["steps"]):
        if "sent" in step:
            received = with_words_in_order(step["received"])
            assert play(sim, step["sent"]) == received, (number, step["sent"])
        elif step["partitions"]:
            if "id" in step:
                sim.topics.ids[step["topic"]] = bytes.fromhex(step["id"])
            sim.topics.put(step["topic"], step["partitions"])
        else:
            sim.topics.delete(step["topic"])
    assert written_batches(sim, describe) == recorded_batches(talk, describe)
