"""Live share groups and streams groups move between kwire and Apache Kafka with their directory.

Their members go on with their epochs and assignments, as those of consumer groups do, and the start
offsets of share partitions stay.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect_to_coordinator
from compat_tests.interchange.node import complaints, hand_over, prepare
from compat_tests.kafka_python.clients import fill
from kwire.codec.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kwire.codec.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from kwire.codec.messages.share_group_describe import ShareGroupDescribeRequest
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.codec.messages.streams_group_describe import StreamsGroupDescribeRequest
from kwire.codec.messages.streams_group_describe import TaskIds as DescribedTasks
from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    TaskIds,
    TopicInfo,
)
from kwire.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator

TOPIC = "topic"
PARTITIONS, START = 4, 3
LOADING = (CoordinatorLoadInProgress.code, CoordinatorNotAvailable.code, NotCoordinator.code)
OTHER = {"kwire": "kafka", "kafka": "kwire"}


class Members:
    """The members of one group, which reconnect after each move."""

    group = ""
    part_count = PARTITIONS
    """The number of partitions or tasks that the members have together."""

    def __init__(self, address: str) -> None:
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, Any] = {}
        self.connect(address)

    def connect(self, address: str) -> None:
        self.client = connect_to_coordinator(address, self.group)

    def ask(self, request: Any, version: int) -> Any:
        """Return the answer of a coordinator that has loaded the group."""

        def answer() -> Any:
            response = self.client.call(request, version)
            return None if response.error_code in LOADING else response

        response = eventually(answer, "an answer of the coordinator")
        assert response.error_code == 0, response
        return response

    def beat(self, member_id: str) -> Any:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        raise NotImplementedError

    def settle(self) -> None:
        eventually(self._is_settled, "a stable group")

    def _is_settled(self) -> bool:
        answers = [self.beat(member_id) for member_id in self.epochs]
        owned = {(i, n) for each in self.owned.values() for i, numbers in each for n in numbers}
        is_stable = self.describe()["state"] == "Stable" and len(owned) == self.part_count
        return is_stable and all(each.member_epoch == self.newest for each in answers)

    @property
    def newest(self) -> int:
        return max(self.epochs.values())


class ShareMembers(Members):
    group = "share-group"

    def set_start(self) -> None:
        """Set the start offset of a partition, which creates the group."""
        shape = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
        partition = shape.AlterShareGroupOffsetsRequestPartition(
            partition_index=0, start_offset=START
        )
        request = AlterShareGroupOffsetsRequest(
            group_id=self.group, topics=[shape(topic_name=TOPIC, partitions=[partition])]
        )
        eventually(lambda: self._is_set(request), "the start offset is set")

    def _is_set(self, request: AlterShareGroupOffsetsRequest) -> bool:
        answer = self.client.call(request, 0)
        return not answer.error_code and not answer.responses[0].partitions[0].error_code

    def beat(self, member_id: str) -> Any:
        epoch = self.epochs.get(member_id, 0)
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=[TOPIC] if epoch == 0 else None,
        )
        answer = self.ask(request, 1)
        self.epochs[member_id] = answer.member_epoch
        if answer.assignment is not None:
            self.owned[member_id] = [
                (each.topic_id, sorted(each.partitions))
                for each in answer.assignment.topic_partitions
            ]
        return answer

    def describe(self) -> dict[str, Any]:
        request = ShareGroupDescribeRequest(
            group_ids=[self.group], include_authorized_operations=False
        )
        (group,) = self.client.call(request, 1).groups
        assert group.error_code == 0, group
        return {
            "state": group.group_state,
            "epoch": group.group_epoch,
            "assignment epoch": group.assignment_epoch,
            "assignor": group.assignor_name,
            "offsets": eventually(self._offsets, "the offsets"),
            "members": {
                each.member_id: (
                    each.member_epoch,
                    each.client_id,
                    each.client_host,
                    sorted(each.subscribed_topic_names),
                    [
                        (t.topic_name, sorted(t.partitions))
                        for t in each.assignment.topic_partitions
                    ],
                )
                for each in group.members
            },
        }

    def _offsets(self) -> dict[int, int] | None:
        """Return the start offset of each share partition, -1 for those without one."""
        shape = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
        request = DescribeShareGroupOffsetsRequest(groups=[shape(group_id=self.group, topics=None)])
        (group,) = self.client.call(request, 0).groups
        partitions = [each for topic in group.topics for each in topic.partitions]
        if group.error_code or any(each.error_code for each in partitions):
            return None
        return {each.partition_index: each.start_offset for each in partitions}


class StreamsMembers(Members):
    group = "streams-group"
    part_count = 2 * PARTITIONS

    def beat(self, member_id: str) -> Any:
        epoch = self.epochs.get(member_id, 0)
        joins = epoch == 0
        owned = self.owned.get(member_id, [])
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=member_id,
            member_epoch=epoch,
            endpoint_information_epoch=-1,
            rebalance_timeout_ms=60_000 if joins else -1,
            process_id=f"process-{member_id}" if joins else None,
            topology=topology() if joins else None,
            active_tasks=[TaskIds(subtopology_id=i, partitions=list(n)) for i, n in owned],
            standby_tasks=[],
            warmup_tasks=[],
        )
        answer = self.ask(request, 0)
        self.epochs[member_id] = answer.member_epoch
        if answer.active_tasks is not None:
            self.owned[member_id] = [
                (each.subtopology_id, sorted(each.partitions)) for each in answer.active_tasks
            ]
        return answer

    def describe(self) -> dict[str, Any]:
        request = StreamsGroupDescribeRequest(
            group_ids=[self.group], include_authorized_operations=False
        )
        (group,) = self.client.call(request, 0).groups
        assert group.error_code == 0, group
        assert group.topology is not None
        subtopologies = group.topology.subtopologies or []
        return {
            "state": group.group_state,
            "epoch": group.group_epoch,
            "assignment epoch": group.assignment_epoch,
            "topology": (group.topology.epoch, *map(_subtopology, subtopologies)),
            "members": {
                each.member_id: (
                    each.member_epoch,
                    each.topology_epoch,
                    each.process_id,
                    each.client_id,
                    each.client_host,
                    _tasks(each.assignment.active_tasks),
                    _tasks(each.target_assignment.active_tasks),
                )
                for each in group.members
            },
        }


def topology() -> StreamsGroupHeartbeatRequest.Topology:
    """Return a topology with a repartition topic and a changelog."""
    shape = StreamsGroupHeartbeatRequest.Topology

    def internal(name: str) -> TopicInfo:
        return TopicInfo(name=name, partitions=0, replication_factor=1)

    return shape(
        epoch=0,
        subtopologies=[
            shape.Subtopology(
                subtopology_id="0", source_topics=[TOPIC], repartition_sink_topics=["repartition"]
            ),
            shape.Subtopology(
                subtopology_id="1",
                repartition_source_topics=[internal("repartition")],
                state_changelog_topics=[internal("changelog")],
            ),
        ],
    )


def _subtopology(each: Any) -> tuple[Any, ...]:
    """Return the topics of a subtopology.

    Kafka forgets the partition counts of the internal ones when the coordinator loads the group.
    """
    return (
        each.subtopology_id,
        each.source_topics,
        each.repartition_sink_topics,
        [topic.name for topic in each.repartition_source_topics],
        [topic.name for topic in each.state_changelog_topics],
    )


def _tasks(tasks: list[DescribedTasks]) -> list[tuple[str, list[int]]]:
    return sorted((each.subtopology_id, sorted(each.partitions)) for each in tasks)


def new_id() -> str:
    return str(uuid.uuid4())


def move(node: Broker, end: str, kind: str, groups: list[Members]) -> None:
    """Have the other server open the directory, and let the members reconnect."""
    for members in groups:
        members.client.close()
    getattr(node, end)()
    hand_over(node, kind)
    for members in groups:
        members.connect(node.address)


@pytest.mark.parametrize(("first", "end"), [("kwire", "kill"), ("kafka", "stop")])
@pytest.mark.with_apache
def test_members_of_both_kinds_continue_on_the_other_broker_and_back(tmp_path, first, end):
    settings = {
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.streams.initial.rebalance.delay.ms": "0",
        "group.share.assignment.interval.ms": "0",
    }
    node = prepare(tmp_path / "node", overrides=settings)
    try:
        node.kind = first
        node.start()
        create(node.address, TOPIC, PARTITIONS)
        fill(node.address, TOPIC, [b"x"] * 5, partition=0)
        share, streams = ShareMembers(node.address), StreamsMembers(node.address)
        groups: list[Members] = [share, streams]
        share.set_start()
        for members in groups:
            members.beat(new_id())
            members.settle()
        assert share.describe()["offsets"][0] == START
        for kind in (OTHER[first], first):
            before = [members.describe() for members in groups]
            owned = [dict(members.owned) for members in groups]
            move(node, end, kind, groups)
            for members in groups:
                for member_id in list(members.epochs):
                    members.beat(member_id)
            for members, earlier in zip(groups, before, strict=True):
                now = members.describe()
                changed = {k: (earlier[k], now[k]) for k in now if now[k] != earlier[k]}
                assert not changed, members.group
            assert [members.owned for members in groups] == owned
            for members in groups:
                members.beat(new_id())
                members.settle()
        assert not [line for line in complaints(node) if "oordinator" in line or "record" in line]
    finally:
        node.close()
