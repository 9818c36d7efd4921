"""The states of share partitions pass between kwire and Apache Kafka with their directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from compat_tests.interchange import view
from compat_tests.interchange.node import complaints, hand_over, prepare
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.errors import FencedLeaderEpoch, FencedStateEpoch
from kwire.share.keys import SharePartition
from kwire.share.persister import InitialState, ReadState, StateBatch
from kwire.share.state import messages
from kwire.share.state.model import StateWrite
from kwire.testing.wire import WireClient

TOPIC = "shared"
GROUP = "g"
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.compression.codec": "1",
    "share.coordinator.snapshot.update.records.per.snapshot": "2",
}
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTER = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"


def share_partition(client: WireClient) -> SharePartition:
    """Return the first partition of the topic, once its coordinator is there."""
    topic = MetadataRequest.MetadataRequestTopic(name=TOPIC)
    topic_id = client.call(MetadataRequest(topics=[topic]), 12).topics[0].topic_id
    of = SharePartition(GROUP, topic_id, 0)

    def is_coordinated() -> bool:
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=[of.key])
        if client.call(request, 6).coordinators[0].error_code:
            return False
        response = client.call(messages.summary_request(GROUP, [of]), 1)
        return not response.results[0].partitions[0].error_code

    eventually(is_coordinated, "the share partition has a coordinator")
    return of


def write(client: WireClient, of: SharePartition, *offsets: int, state_epoch: int = 3) -> None:
    """Acknowledge offsets one by one: two updates, then a snapshot."""
    for offset in offsets:
        batch = StateBatch(offset, offset, 2, 1)
        request = messages.write_request(GROUP, {of: StateWrite(state_epoch, 4, -1, 0, [batch])})
        assert messages.failures(GROUP, client.call(request, 1)) == {of: None}


def read(client: WireClient, of: SharePartition) -> ReadState:
    response = client.call(messages.read_request(GROUP, {of: 4}), 0)
    state = messages.read_results(GROUP, response)[of]
    assert isinstance(state, ReadState)
    return state


def check_fences(client: WireClient, of: SharePartition) -> None:
    """Check that earlier leaders and earlier state epochs are fenced."""
    late = messages.write_request(GROUP, {of: StateWrite(3, 3, -1, 0)})
    assert client.call(late, 1).results[0].partitions[0].error_code == FencedLeaderEpoch.code
    earlier = messages.initialize_request(GROUP, {of: InitialState(2, 0)})
    assert client.call(earlier, 0).results[0].partitions[0].error_code == FencedStateEpoch.code


def print_records(jvm, address: str) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    """Return kind, snapshot epoch, start and batches of each record, as Apache's tool prints it."""
    place = ("__share_group_state", 0)
    count = view.offsets(address, [place])["end"][place]
    limits = ("--max-messages", str(count), "--timeout-ms", "60000")
    arguments = ("--topic", place[0], "--from-beginning", *limits, "--formatter", FORMATTER)
    ran = jvm.tool(CONSUMER, "--bootstrap-server", address, *arguments)
    return [
        (
            line["key"]["type"],
            line["value"]["data"]["snapshotEpoch"],
            line["value"]["data"]["startOffset"],
            [(b["firstOffset"], b["lastOffset"]) for b in line["value"]["data"]["stateBatches"]],
        )
        for line in _objects(ran.out)
    ]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text, which the tool writes one behind the other."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        yield value


@pytest.mark.with_apache
def test_share_states_pass_to_kafka_and_back(tmp_path, jvm):
    node = prepare(tmp_path / "node", overrides=SETTINGS)
    try:
        node.start()
        create(node.address, TOPIC, 1)
        with connect(node.address) as client:
            of = share_partition(client)
            request = messages.initialize_request(GROUP, {of: InitialState(3, 10)})
            assert messages.failures(GROUP, client.call(request, 0)) == {of: None}
            read(client, of)
            write(client, of, 10, 12, 11)
            state = read(client, of)
        assert state == ReadState(0, 3, 10, [StateBatch(10, 12, 2, 1)])
        by_kwire = [
            (0, 0, 10, []),
            (1, 0, 10, []),
            (1, 0, -1, [(10, 10)]),
            (0, 1, 10, [(10, 10), (12, 12)]),
            (1, 1, -1, [(11, 11)]),
        ]
        assert print_records(jvm, node.address) == by_kwire
        node.stop()
        hand_over(node, "kafka")
        with connect(node.address) as client:
            assert share_partition(client) == of
            assert read(client, of) == state
            check_fences(client, of)
            write(client, of, 13, 15)
            state = read(client, of)
        assert all("epoch is smaller" in line for line in complaints(node))  # Of the fences.
        by_kafka = [(1, 1, -1, [(13, 13)]), (0, 2, 10, [(10, 13), (15, 15)])]
        assert print_records(jvm, node.address) == by_kwire + by_kafka
        node.stop()
        hand_over(node, "kwire")
        with connect(node.address) as client:
            assert share_partition(client) == of
            assert read(client, of) == state
            check_fences(client, of)
            write(client, of, 14)
            assert list(read(client, of).batches) == [StateBatch(10, 15, 2, 1)]
    finally:
        node.close()
