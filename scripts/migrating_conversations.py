"""Conversations of groups that change between the classic and the consumer protocol.

One member begins as a classic group. Consumers join, so that it becomes a consumer group, in which
members of both protocols meet. When the last consumer leaves, it is a classic group again; the
conversation ends then, because the members of a classic group wait for each other.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from kwire.codec.compile import encode  # noqa: E402
from kwire.codec.messages.consumer_protocol import (  # noqa: E402
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kwire.codec.messages.heartbeat import HeartbeatRequest  # noqa: E402
from kwire.codec.messages.join_group import JoinGroupRequest  # noqa: E402
from kwire.codec.messages.leave_group import LeaveGroupRequest  # noqa: E402
from kwire.codec.messages.sync_group import SyncGroupRequest  # noqa: E402
from scripts.consumer_conversations import Conversation  # noqa: E402
from tests.support.group.recordings import classic_form  # noqa: E402

REJOIN = 27
"""REBALANCE_IN_PROGRESS."""
_DYNAMIC, _STATIC = 3, 5
"""The versions of JoinGroup: without an answer that only hands out a member id, and with names."""


@attrs.define
class ClassicMember:
    """A member of the classic protocol, as a client knows it."""

    topics: list[str]
    version: int
    """The version of its subscriptions."""
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: dict[str, list[int]] = attrs.field(factory=dict)

    def subscription(self) -> bytes:
        shape = ConsumerProtocolSubscription.TopicPartition
        owned = [shape(topic=name, partitions=each) for name, each in sorted(self.owned.items())]
        message = ConsumerProtocolSubscription(
            topics=self.topics,
            owned_partitions=owned,
            generation_id=self.generation,
        )
        return struct.pack(">h", self.version) + encode(message, self.version)


@attrs.define
class Migration(Conversation):
    """A group with members of both protocols."""

    classics: list[ClassicMember] = attrs.field(factory=list)
    is_over: bool = False

    def run(self, step_count: int) -> None:
        self.begin()
        self.add()
        for number in range(step_count):
            if not self.is_over:
                self.step()
            if number == step_count // 2 and not self.is_over:
                self.grow(min(self.counts))
        for member in self.classics:
            self.send_heartbeat(member)

    def begin(self) -> None:
        """Have one member form a classic group, and assign itself all partitions."""
        member = self.new_classic()
        self.join_classic(member)
        topic = ConsumerProtocolAssignment.TopicPartition
        owned = {name: list(range(self.counts[name])) for name in member.topics}
        assigned = [topic(topic=name, partitions=each) for name, each in owned.items()]
        message = ConsumerProtocolAssignment(assigned_partitions=assigned)
        data = struct.pack(">h", member.version) + encode(message, member.version)
        self.sync_classic(member, {member.member_id: data})

    def new_classic(self) -> ClassicMember:
        number = self.next_id()
        instance_id = f"i{number}" if self.draw.random() < 0.3 else None
        member = ClassicMember(self.some_topics(), self.draw.randint(0, 3), instance_id)
        self.classics.append(member)
        return member

    def step(self) -> None:
        kind = self.draw.random()
        if kind < 0.35:
            self.beat_classic(self.draw.choice(self.classics))
        elif kind < 0.45 and len(self.classics) < 3:
            member = self.new_classic()
            self.join_classic(member)
            self.sync_classic(member, {})
        elif kind < 0.50 and len(self.classics) > 1:
            self.leave_classic(self.draw.choice(self.classics))
        elif kind < 0.60:
            self.remove_consumer()
        elif kind < 0.75 and len(self.consumers) < 3:
            self.add()
        else:
            self.stay(self.draw.choice(self.consumers))

    def remove_consumer(self) -> None:
        consumer = self.draw.choice(self.consumers)
        self.consumers.remove(consumer)
        self.beat(consumer, -1)
        self.is_over = not self.consumers

    def beat_classic(self, member: ClassicMember) -> None:
        """Send a heartbeat; a member that is asked to rejoins."""
        code = self.send_heartbeat(member)
        if code == 0:
            return
        if code != REJOIN:
            member.member_id, member.owned, member.generation = "", {}, -1
        if self.draw.random() < 0.8:
            self.join_classic(member)
            self.sync_classic(member, {})

    # Requests.

    def ask(self, request: Any, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        at_s = self.now()
        received = classic_form(self.client.call(request, version))
        name = type(request).__name__.removesuffix("Request")
        self.record({"api": name, "version": version, "fields": fields, "received": received}, at_s)
        return received

    def join_classic(self, member: ClassicMember) -> None:
        if self.draw.random() < 0.2:
            member.topics = self.some_topics()
        metadata = member.subscription()
        fields: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": 600_000,
            "rebalance_timeout_ms": self.rebalance_ms,
            "member_id": member.member_id,
            "protocol_type": "consumer",
        }
        if member.instance_id is not None:
            fields["group_instance_id"] = member.instance_id
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
        request = JoinGroupRequest(**fields, protocols=[protocol])
        version = _DYNAMIC if member.instance_id is None else _STATIC
        received = self.ask(request, version, {**fields, "metadata": metadata.hex()})
        if received["error_code"] == 0:
            member.member_id = received["member_id"]
            member.generation = received["generation_id"]

    def sync_classic(self, member: ClassicMember, assignments: dict[str, bytes]) -> None:
        shape = SyncGroupRequest.SyncGroupRequestAssignment
        fields = self.identity(member)
        request = SyncGroupRequest(
            **fields,
            assignments=[shape(member_id=each, assignment=a) for each, a in assignments.items()],
        )
        texts = {each: data.hex() for each, data in assignments.items()}
        received = self.ask(request, 3, {**fields, "assignments": texts})
        if received["error_code"] == 0:
            member.owned = received["assignment"]["partitions"]

    def send_heartbeat(self, member: ClassicMember) -> int:
        fields = self.identity(member)
        code: int = self.ask(HeartbeatRequest(**fields), 3, fields)["error_code"]
        return code

    def leave_classic(self, member: ClassicMember) -> None:
        self.classics.remove(member)
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=member.member_id, group_instance_id=member.instance_id
        )
        fields = {
            "group_id": self.group,
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
        }
        self.ask(LeaveGroupRequest(group_id=self.group, members=[identity]), 3, fields)

    def identity(self, member: ClassicMember) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
        }
