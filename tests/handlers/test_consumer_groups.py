"""ConsumerGroupHeartbeat, ConsumerGroupDescribe and the other APIs about consumer groups."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.errors import BY_CODE, kafka_name
from tests.support.handlers.broker import topic_id
from tests.support.handlers.group_node import GroupNode, group_node


@asynccontextmanager
async def consumer_node(*, level: int = 1, **settings: Any) -> AsyncIterator[GroupNode]:
    async with group_node({"group.consumer.assignment.interval.ms": "0", **settings}) as node:
        await node.broker.publish(r.FeatureLevelRecord(name="group.version", feature_level=level))
        yield node


def heartbeat(member_id: str = "m", epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 1_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
            **fields,
        }
    return ConsumerGroupHeartbeatRequest(
        **{"group_id": "g", "member_id": member_id, "member_epoch": epoch, **fields}
    )


def describe(*group_ids: str) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(
        group_ids=list(group_ids), include_authorized_operations=False
    )


def error_of(answer: Any) -> str:
    return kafka_name(BY_CODE[answer.error_code]) if answer.error_code else ""


async def test_member_joins_heartbeats_and_leaves() -> None:
    async with consumer_node() as node:
        answer = await node.ask(heartbeat(), client_host="10.0.0.1")
        assert (answer.member_id, answer.member_epoch) == ("m", 2)
        (topic,) = answer.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (topic_id("t"), [0, 1, 2])
        answer = await node.ask(heartbeat(epoch=2))
        assert (answer.member_epoch, answer.assignment) == (2, None)
        answer = await node.ask(heartbeat(epoch=-1))
        assert (answer.member_epoch, answer.heartbeat_interval_ms) == (-1, 0)


async def test_member_of_version_0_receives_an_id() -> None:
    async with consumer_node() as node:
        answer = await node.ask(heartbeat(""), version=0)
        assert answer.member_id
        assert answer.member_epoch == 2
        answer = await node.ask(heartbeat(""), version=1)
        assert error_of(answer) == "INVALID_REQUEST"
        assert answer.error_message == "MemberId can't be empty."


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"group_id": " "}, "INVALID_REQUEST", "GroupId can't be empty."),
        ({"instance_id": ""}, "INVALID_REQUEST", "InstanceId can't be empty."),
        ({"rack_id": ""}, "INVALID_REQUEST", "RackId can't be empty."),
        (
            {"rebalance_timeout_ms": -1},
            "INVALID_REQUEST",
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            {"topic_partitions": None},
            "INVALID_REQUEST",
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": None},
            "INVALID_REQUEST",
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
        ({"epoch": -2}, "INVALID_REQUEST", "InstanceId can't be null."),
        ({"epoch": -3}, "INVALID_REQUEST", "MemberEpoch is invalid."),
        (
            {"server_assignor": "best"},
            "UNSUPPORTED_ASSIGNOR",
            "ServerAssignor best is not supported. Supported assignors: uniform, range.",
        ),
        ({"epoch": 1}, "GROUP_ID_NOT_FOUND", "Consumer group g not found."),
    ],
)
async def test_bad_heartbeats_are_rejected_in_kafkas_words(
    fields: dict[str, Any], error: str, text: str
) -> None:
    async with consumer_node() as node:
        answer = await node.ask(heartbeat(**fields))
        assert (error_of(answer), answer.error_message) == (error, text)


async def test_group_version_0_serves_no_consumer_groups() -> None:
    async with consumer_node(level=0) as node:
        assert error_of(await node.ask(heartbeat())) == "UNSUPPORTED_VERSION"
        answer = await node.ask(describe("g"))
        assert error_of(answer.groups[0]) == "UNSUPPORTED_VERSION"


async def test_broker_that_does_not_serve_the_protocol_rejects_it() -> None:
    settings: dict[str, Any] = {"group.coordinator.rebalance.protocols": "classic"}
    async with consumer_node(**settings) as node:
        assert error_of(await node.ask(heartbeat())) == "UNSUPPORTED_VERSION"


async def test_consumer_group_is_described_with_its_members() -> None:
    async with consumer_node() as node:
        await node.ask(heartbeat(rack_id="r", server_assignor="range"))
        await node.ask(heartbeat("n"))
        answer = await node.ask(describe("g", "x"))
        group, missing = answer.groups
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == (
            "Reconciling",
            3,
            3,
        )
        assert group.assignor_name == "range"
        first, second = group.members
        assert (first.member_id, first.rack_id, first.member_epoch) == ("m", "r", 2)
        assert first.client_host == "/127.0.0.1"
        assert first.subscribed_topic_names == ["t"]
        assert [t.topic_name for t in first.assignment.topic_partitions] == ["t"]
        assert first.assignment.topic_partitions[0].partitions == [0, 1, 2]
        assert first.target_assignment.topic_partitions[0].partitions == [0, 1]
        assert second.target_assignment.topic_partitions[0].partitions == [2]
        assert (first.member_type, second.member_type) == (1, 1)
        assert error_of(missing) == "GROUP_ID_NOT_FOUND"
        assert missing.error_message == "Group x not found."


async def test_groups_are_described_only_by_their_own_api() -> None:
    async with consumer_node() as node:
        await node.ask(heartbeat())
        await node.commit({"t": {0: 1}}, group="classic")
        answer = await node.ask(DescribeGroupsRequest(groups=["g"]))
        assert error_of(answer.groups[0]) == "GROUP_ID_NOT_FOUND"
        assert answer.groups[0].error_message == "Group g is not a classic group."
        answer = await node.ask(describe("classic"))
        assert error_of(answer.groups[0]) == "GROUP_ID_NOT_FOUND"
        assert answer.groups[0].error_message == "Group classic is not a consumer group."
        answer = await node.ask(describe(""))
        assert error_of(answer.groups[0]) == "INVALID_GROUP_ID"


async def test_groups_are_listed_by_type_and_state() -> None:
    async with consumer_node() as node:
        await node.ask(heartbeat())
        await node.commit({"t": {0: 1}}, group="classic")

        async def listing(**filters: list[str]) -> list[tuple[str, str, str]]:
            answer = await node.ask(ListGroupsRequest(**filters))
            return [(g.group_id, g.group_type, g.group_state) for g in answer.groups]

        consumer, classic = ("g", "consumer", "Stable"), ("classic", "classic", "Empty")
        assert await listing() == [classic, consumer]
        assert await listing(types_filter=["Consumer"]) == [consumer]
        assert await listing(types_filter=["classic"]) == [classic]
        assert await listing(states_filter=["stable"]) == [consumer]
        assert await listing(states_filter=["Reconciling"]) == []


async def test_group_in_use_cannot_be_deleted_and_keeps_its_offsets() -> None:
    async with consumer_node() as node:
        await node.ask(heartbeat())
        (result,) = (await node.ask(DeleteGroupsRequest(groups_names=["g"]))).results
        assert error_of(result) == "NON_EMPTY_GROUP"
        shape = OffsetDeleteRequest.OffsetDeleteRequestTopic
        topics = [
            shape(name=name, partitions=[shape.OffsetDeleteRequestPartition(partition_index=0)])
            for name in ("t", "u")
        ]
        answer = await node.ask(OffsetDeleteRequest(group_id="g", topics=topics))
        codes = {t.name: error_of(t.partitions[0]) for t in answer.topics}
        assert codes == {"t": "GROUP_SUBSCRIBED_TO_TOPIC", "u": ""}
        await node.ask(heartbeat(epoch=-1))
        (result,) = (await node.ask(DeleteGroupsRequest(groups_names=["g"]))).results
        assert error_of(result) == ""
        answer = await node.ask(ListGroupsRequest())
        assert answer.groups == []


async def test_offsets_are_fetched_with_the_member_epoch() -> None:
    async with consumer_node() as node:
        await node.ask(heartbeat())

        async def fetch(member_id: str | None, epoch: int) -> str:
            shape = OffsetFetchRequest.OffsetFetchRequestGroup
            group = shape(group_id="g", topics=None, member_id=member_id, member_epoch=epoch)
            answer = await node.ask(OffsetFetchRequest(groups=[group]), version=9)
            return error_of(answer.groups[0])

        assert await fetch("m", 2) == ""
        assert await fetch(None, -1) == ""
        assert await fetch("m", 0) == "STALE_MEMBER_EPOCH"
        assert await fetch("n", 1) == "UNKNOWN_MEMBER_ID"


async def test_members_commit_from_version_9_onwards() -> None:
    async with consumer_node() as node:
        await node.ask(heartbeat())
        shape = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = shape.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id="g",
            member_id="m",
            generation_id_or_member_epoch=2,
            topics=[shape(name="t", partitions=[partition])],
        )
        errors = [
            error_of((await node.ask(request, version=version)).topics[0].partitions[0])
            for version in (8, 9)
        ]
        assert errors == ["UNSUPPORTED_VERSION", ""]
