"""kafka-streams-groups.sh: Apache's tool for streams groups, by the class that the script starts.

The member of these tests sends its heartbeats on a connection of its own.
"""

from __future__ import annotations

import re
import uuid

import pytest

from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect_to_coordinator
from compat_tests.kafka_python.clients import create, fill
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
LEAVE = -1


@pytest.fixture
def tool(jvm, broker):
    """A function that runs the tool with --bootstrap-server and returns its output."""

    def run(*arguments):
        return jvm.tool(STREAMS_GROUPS, "--bootstrap-server", broker.address, *arguments).ok()

    return run


class Member:
    """A member of a streams group, which only sends heartbeats."""

    def __init__(self, broker, group, topic):
        self.client = connect_to_coordinator(broker.address, group)
        self.group, self.topic = group, topic
        self.member_id = str(uuid.uuid4())
        self.epoch = 0

    def beat(self, epoch=None):
        epoch = self.epoch if epoch is None else epoch
        shape = StreamsGroupHeartbeatRequest.Topology
        subtopology = shape.Subtopology(subtopology_id="0", source_topics=[self.topic])
        joins = epoch == 0
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            endpoint_information_epoch=-1,
            rebalance_timeout_ms=60_000 if joins else -1,
            topology=shape(epoch=0, subtopologies=[subtopology]) if joins else None,
            process_id="process" if joins else None,
            active_tasks=[] if joins else None,
            standby_tasks=[] if joins else None,
            warmup_tasks=[] if joins else None,
        )
        answer = self.client.call(request, 0)
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
        return answer

    def join(self):
        """Join, and send heartbeats until tasks are assigned; return their numbers."""
        eventually(lambda: self.beat().error_code == 0, "the member has joined")

        def tasks():
            answer = self.beat()
            return [n for each in answer.active_tasks or () for n in each.partitions]

        return sorted(eventually(tasks, "tasks are assigned"))

    def commit(self, offset):
        """Commit an offset of the topic's first partition; return the error code."""
        shape = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = shape.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[shape(name=self.topic, partitions=[partition])],
        )
        (topic,) = self.client.call(request, 9).topics
        return topic.partitions[0].error_code

    def leave(self):
        self.beat(LEAVE)
        self.client.close()


def test_streams_group_with_a_member_is_listed_and_described(broker, tool, topic, group):
    create(broker.address, topic, 2)
    member = Member(broker, group, topic)
    assert member.join() == [0, 1]
    assert group in tool("--list").split()
    (row,) = [r.split() for r in tool("--list", "--state").splitlines() if r.startswith(group)]
    assert row == [group, "Stable"]
    described = tool("--describe", "--group", group, "--members", "--verbose")
    assert member.member_id in described
    assert "0:[0,1]" in described
    state = tool("--describe", "--group", group, "--state", "--verbose")
    assert re.search(rf"{group}\s+\S+\s+\(\d+\)\s+Stable", state), state
    member.leave()
    (row,) = [r.split() for r in tool("--list", "--state").splitlines() if r.startswith(group)]
    assert row == [group, "Empty"]


def test_offsets_are_reset_and_deleted_and_the_group_too(broker, jvm, tool, topic, group):
    create(broker.address, topic, 2)
    fill(broker.address, topic, [b"x"] * 10, partition=0)
    member = Member(broker, group, topic)
    member.join()
    assert member.commit(3) == 0
    offsets = tool("--describe", "--group", group, "--offsets", "--verbose")
    assert re.search(rf"{group}\s+{topic}\s+0\s+3\s+\S+\s+10\s+7", offsets), offsets
    address = ["--bootstrap-server", broker.address]
    refused = jvm.tool(STREAMS_GROUPS, *address, "--delete", "--group", group)
    assert "not empty" in (refused.out + refused.err).lower()
    member.leave()
    scope = ["--group", group, "--all-input-topics"]
    reset = tool("--reset-offsets", "--to-latest", *scope, "--execute")
    assert re.search(rf"{group}\s+{topic}\s+0\s+10", reset), reset
    deleted = tool("--delete-offsets", *scope)
    assert re.search(rf"{topic}\s+0\s+Successful", deleted), deleted
    tool("--delete", "--group", group)
    assert group not in tool("--list").split()
