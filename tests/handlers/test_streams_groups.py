"""The APIs of streams groups: members, their topics, descriptions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.streams_group_describe import StreamsGroupDescribeRequest
from kwire.codec.messages.streams_group_heartbeat import KeyValue, TopicInfo
from kwire.errors import (
    BY_CODE,
    GroupIdNotFound,
    InvalidReplicationFactor,
    InvalidRequest,
    NonEmptyGroup,
    StreamsInvalidTopology,
    UnsupportedVersion,
    kafka_name,
)
from kwire.group.streams.configuration import StatusCode
from tests.support.group.streams import STATEFUL, Subtopology, Topology, read, request
from tests.support.handlers.group_node import GroupNode, group_node

QUICK = {
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
}


@asynccontextmanager
async def streams_node(*, level: int = 1, **settings: Any) -> AsyncIterator[GroupNode]:
    async with group_node({**QUICK, **settings}) as node:
        record = r.FeatureLevelRecord(name="streams.version", feature_level=level)
        await node.broker.publish(record)
        yield node


def describe(*group_ids: str) -> StreamsGroupDescribeRequest:
    return StreamsGroupDescribeRequest(
        group_ids=list(group_ids), include_authorized_operations=False
    )


def topology(**fields: Any) -> Topology:
    subtopology = Subtopology(**{"subtopology_id": "0", "source_topics": ["t"], **fields})
    return Topology(epoch=0, subtopologies=[subtopology])


async def test_member_joins_is_described_and_leaves() -> None:
    async with streams_node() as node:
        assert read(await node.ask(request("m"))).active == {"0": [0, 1, 2]}
        (group,) = (await node.ask(describe("g"))).groups
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
        assert group.topology.subtopologies[0].source_topics == ["t"]
        (member,) = group.members
        assert (member.member_id, member.member_epoch) == ("m", 2)
        assert member.process_id == "process-of-m"
        for assignment in (member.assignment, member.target_assignment):
            (tasks,) = assignment.active_tasks
            assert tasks.partitions == [0, 1, 2]
        listing = await node.ask(ListGroupsRequest(states_filter=[], types_filter=["streams"]))
        assert [(g.group_id, g.group_type, g.group_state) for g in listing.groups] == [
            ("g", "streams", "Stable")
        ]
        (refused,) = (await node.ask(DeleteGroupsRequest(groups_names=["g"]))).results
        assert refused.error_code == NonEmptyGroup.code
        assert (await node.ask(request("m", -1))).member_epoch == -1
        (deleted,) = (await node.ask(DeleteGroupsRequest(groups_names=["g"]))).results
        assert deleted.error_code == 0
        (missing,) = (await node.ask(describe("g"))).groups
        assert missing.error_code == GroupIdNotFound.code


async def test_internal_topics_are_created_with_their_counts_and_settings() -> None:
    changelog = TopicInfo(
        name="changelog",
        partitions=0,
        replication_factor=0,
        topic_configs=[],
    )
    async with streams_node() as node:
        joined = await node.ask(request("m", topology=topology(state_changelog_topics=[changelog])))
        assert read(joined).statuses == [StatusCode.MISSING_INTERNAL_TOPICS]
        await wait_all_tasks_blocked()
        image = node.broker.current.image.topic("changelog")
        assert image is not None
        assert len(image.partitions) == 3
        assert read(await node.ask(request("m", 2))).active == {"0": [0, 1, 2]}


async def test_topics_that_cannot_be_created_are_explained_and_tried_again(
    autojump_clock: MockClock,
) -> None:
    async with streams_node() as node:
        creator = node.topic_creation
        creator.failure = InvalidReplicationFactor("no room")
        await node.ask(request("m", topology=STATEFUL))
        await wait_all_tasks_blocked()
        answer = await node.ask(request("m", 2))
        (status,) = answer.status
        assert status.status_detail == (
            "Internal topics are missing: changelog; Creation failed: changelog (no room)."
        )
        assert creator.topics == ["changelog"]
        creator.failure = None
        await trio.sleep(10)
        await node.ask(request("m", 2))
        await wait_all_tasks_blocked()
        assert creator.topics == ["changelog", "changelog"]
        assert read(await node.ask(request("m", 2))).statuses == []


@attrs.define
class NoCreation:
    """An authorizer that lets nobody create topics."""

    def allows(self, principal: Any, host: str, operation: str, kind: str, name: str) -> bool:
        return operation != "Create"


async def test_client_that_may_not_create_topics_is_told_so() -> None:
    async with streams_node() as node:
        node.broker.replace(authorizer=NoCreation())
        answer = await node.ask(request("m", topology=STATEFUL))
        (status,) = answer.status
        assert status.status_detail == (
            "Internal topics are missing: changelog; Unauthorized to CREATE on topics changelog."
        )
        await wait_all_tasks_blocked()
        assert node.topic_creation.topics == []


async def test_topologies_with_forbidden_topics_are_refused() -> None:
    async with streams_node() as node:
        for names, text in (
            (["__consumer_offsets"], "internal topics __consumer_offsets"),
            (["not valid"], "not valid topic names"),
        ):
            answer = await node.ask(request("m", topology=topology(source_topics=names)))
            assert answer.error_code == StreamsInvalidTopology.code
            assert text in answer.error_message


async def test_invalid_heartbeats_are_refused() -> None:
    changelog = TopicInfo(name="c", partitions=3, replication_factor=0)
    zones = [KeyValue(key="zone", value=zone) for zone in ("a", "b")]
    async with streams_node() as node:
        for sent, text in (
            (request(""), "MemberId"),
            (request("m", group=" "), "GroupId"),
            (request("m", instance_id="i"), "Static membership"),
            (request("m", rebalance_timeout_ms=-1), "RebalanceTimeoutMs"),
            (request("m", active={"0": [0]}), "ActiveTasks must be empty"),
            (request("m", topology=None), "Topology must be non-null"),
            (request("m", topology=topology(source_topic_regex=["a.*"])), "Regular expressions"),
            (request("m", 2, topology=topology()), "only be provided when"),
            (request("m", 2, active_tasks=[]), "all must be non-null"),
            (request("m", -2), "InstanceId"),
            (request("m", -3), "MemberEpoch is -3"),
            (request("m", client_tags=zones), "two client tags with"),
        ):
            answer = await node.ask(sent)
            assert kafka_name(BY_CODE[answer.error_code]) == kafka_name(InvalidRequest), text
            assert text in answer.error_message
        answer = await node.ask(request("m", topology=topology(state_changelog_topics=[changelog])))
        assert answer.error_code == StreamsInvalidTopology.code


async def test_endpoints_are_told_with_their_partitions() -> None:
    async with streams_node() as node:
        await node.ask(request("a", endpoint=("host", 1)))
        answer = await node.ask(request("b"))
        (endpoint,) = answer.partitions_by_user_endpoint
        assert (endpoint.user_endpoint.host, endpoint.user_endpoint.port) == ("host", 1)
        (active,) = endpoint.active_partitions
        assert (active.topic, active.partitions) == ("t", [0, 1, 2])


async def test_streams_version_0_serves_no_streams_groups() -> None:
    async with streams_node(level=0) as node:
        assert (await node.ask(request("m"))).error_code == UnsupportedVersion.code
        (group,) = (await node.ask(describe("g"))).groups
        assert group.error_code == UnsupportedVersion.code


async def test_broker_without_the_protocol_serves_no_streams_groups() -> None:
    settings: dict[str, Any] = {"group.coordinator.rebalance.protocols": "classic,consumer"}
    async with streams_node(**settings) as node:
        assert (await node.ask(request("m"))).error_code == UnsupportedVersion.code
