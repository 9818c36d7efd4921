"""kafka-share-groups.sh: Apache's tool for share groups, by the class that the script starts.

The member of these tests sends its heartbeats on a connection of its own.
"""

from __future__ import annotations

import re
import uuid

import pytest

from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect_to_coordinator
from compat_tests.kafka_python.clients import create, fill
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
LEAVE = -1


@pytest.fixture
def tool(jvm, broker):
    """A function that runs the tool with --bootstrap-server and returns its output."""

    def run(*arguments):
        return jvm.tool(SHARE_GROUPS, "--bootstrap-server", broker.address, *arguments).ok()

    return run


class Member:
    """A member of a share group, which only sends heartbeats."""

    def __init__(self, broker, group, topic):
        self.client = connect_to_coordinator(broker.address, group)
        self.group, self.topic = group, topic
        self.member_id = str(uuid.uuid4())
        self.epoch = 0

    def beat(self, epoch=None):
        epoch = self.epoch if epoch is None else epoch
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            subscribed_topic_names=[self.topic] if epoch == 0 else None,
        )
        answer = self.client.call(request, 1)
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
        return answer

    def join(self):
        """Join, and send heartbeats until partitions are assigned; return how many."""
        eventually(lambda: self.beat().error_code == 0, "the member has joined")

        def partitions():
            answer = self.beat()
            topics = answer.assignment.topic_partitions if answer.assignment else []
            return sum(len(topic.partitions) for topic in topics)

        return eventually(partitions, "partitions are assigned")

    def leave(self):
        self.beat(LEAVE)
        self.client.close()


def test_share_group_with_a_member_is_listed_and_described(broker, tool, topic, group):
    create(broker.address, topic, 2)
    member = Member(broker, group, topic)
    assert member.join() == 2
    assert group in tool("--list").split()
    (row,) = [r.split() for r in tool("--list", "--state").splitlines() if r.startswith(group)]
    assert row == [group, "Stable"]
    described = tool("--describe", "--group", group, "--members", "--verbose")
    assert member.member_id in described
    assert f"{topic}:0,1" in described
    state = tool("--describe", "--group", group, "--state", "--verbose")
    assert re.search(rf"{group}\s+\S+\s+\(\d+\)\s+Stable\s+\d+\s+\d+\s+1", state)
    offsets = tool("--describe", "--group", group, "--offsets")
    assert re.search(rf"{group}\s+{topic}\s+0\s+-", offsets)
    member.leave()
    (row,) = [r.split() for r in tool("--list", "--state").splitlines() if r.startswith(group)]
    assert row == [group, "Empty"]


def test_offsets_are_reset_and_deleted_and_the_group_too(broker, jvm, tool, topic, group):
    create(broker.address, topic, 2)
    fill(broker.address, topic, [b"x"] * 10, partition=0)
    member = Member(broker, group, topic)
    member.join()
    address = ["--bootstrap-server", broker.address]
    scope = ["--group", group, "--topic", topic]
    refused = jvm.tool(SHARE_GROUPS, *address, "--delete", "--group", group)
    assert "is not EMPTY" in refused.out + refused.err
    member.leave()
    tool("--reset-offsets", "--to-earliest", *scope, "--execute")
    offsets = tool("--describe", "--group", group, "--offsets", "--verbose")
    assert re.search(rf"{group}\s+{topic}\s+0\s+\S+\s+0\s+10", offsets), offsets
    tool("--reset-offsets", "--to-latest", *scope, "--execute")
    offsets = tool("--describe", "--group", group, "--offsets", "--verbose")
    assert re.search(rf"{group}\s+{topic}\s+0\s+\S+\s+10\s+0", offsets), offsets
    tool("--delete-offsets", *scope)
    assert topic not in tool("--describe", "--group", group, "--offsets")
    tool("--delete", "--group", group)
    assert group not in tool("--list").split()
