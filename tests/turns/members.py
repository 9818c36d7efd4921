"""A group of 1,000 members: its rebalances, its heartbeats, and the end of its sessions."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.errors import RebalanceInProgress
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

MEMBERS: Final = 1_000
GROUP: Final = "g"
SESSION_MS: Final = 45_000
REBALANCE_MS: Final = 60_000
STATIC: Final = "static"


@attrs.define
class Members:
    """A node, and the members of its group as their clients know them."""

    node: MeteredNode
    ids: list[str] = attrs.field(factory=list)
    generation: int = 0
    leader: str = ""
    assignment: bytes = b"assigned"
    session_ms: int = SESSION_MS

    async def join(self, ids: Sequence[str]) -> None:
        """Measure the JoinGroup of members, until all of them are in the same generation."""
        (answers,) = await self.node.measure_together(
            [join(member, self.session_ms) for member in ids]
        )
        self.on_joined(answers)

    def on_joined(self, answers: Sequence[Any]) -> None:
        assert not any(answer.error_code for answer in answers)
        (self.generation,) = {answer.generation_id for answer in answers}
        (self.leader,) = {answer.leader for answer in answers}
        self.ids = [answer.member_id for answer in answers]
        assert max(len(answer.members) for answer in answers) == len(answers)

    async def join_anew(self, count: int) -> None:
        """Measure the JoinGroup of members that the group does not know."""
        (answers,) = await self.node.measure_together([join("", self.session_ms)] * count)
        await self.join([answer.member_id for answer in answers])

    async def sync(self, *, leader_first: bool = False) -> None:
        """Measure the SyncGroup of all members, until each has its assignment."""
        ids = sorted(self.ids, key=lambda member: (member == self.leader) != leader_first)
        (answers,) = await self.node.measure_together([self.sync_request(each) for each in ids])
        assert not any(answer.error_code for answer in answers)
        assert all(answer.assignment == self.assignment for answer in answers)

    def sync_request(self, member: str) -> SyncGroupRequest:
        shape = SyncGroupRequest.SyncGroupRequestAssignment
        receivers = self.ids if member == self.leader else []
        return SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[shape(member_id=each, assignment=self.assignment) for each in receivers],
        )

    def heartbeat(self, member: str) -> HeartbeatRequest:
        return HeartbeatRequest(group_id=GROUP, generation_id=self.generation, member_id=member)

    async def describe(self) -> Any:
        answer = await self.node.call(DescribeGroupsRequest(groups=[GROUP]))
        return answer.groups[0]


def join(member: str, session_ms: int = SESSION_MS) -> JoinGroupRequest:
    """Return the JoinGroup of a member, or of a client without a member id."""
    shape = JoinGroupRequest.JoinGroupRequestProtocol
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id=member,
        protocol_type="consumer",
        protocols=[shape(name=name, metadata=SUBSCRIPTION) for name in ("range", "roundrobin")],
    )


SUBSCRIPTION: Final = bytes.fromhex("0000000000010005") + b"topic" + bytes.fromhex("ffffffff")
"""A consumer's subscription to one topic, as the clients encode it."""


@asynccontextmanager
async def group_of_members(meter: TurnMeter) -> AsyncIterator[Members]:
    settings = {
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
    }
    async with metered_node(meter, **settings) as node:
        await node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
        await trio.sleep(10)
        yield Members(node)


MEMBERED: Final = Scene("a group of many members", group_of_members)
row = MEMBERED.operation


@row("JoinGroup and SyncGroup of new members", "members", MEMBERS, "JoinGroup", "SyncGroup")
async def begin(members: Members, size: int) -> None:
    await members.join_anew(size)
    await members.sync()
    assert len(members.ids) == size


@row("Heartbeat", "members", MEMBERS, "Heartbeat", after="JoinGroup and SyncGroup of new members")
async def beat(members: Members, size: int) -> None:
    (answers,) = await members.node.measure_together([members.heartbeat(m) for m in members.ids])
    assert not any(answer.error_code for answer in answers)


@row(
    "DescribeGroups of one group",
    "members",
    MEMBERS,
    "DescribeGroups",
    after="JoinGroup and SyncGroup of new members",
)
async def describe(members: Members, size: int) -> None:
    (answer,) = await members.node.measure(DescribeGroupsRequest(groups=[GROUP]))
    assert len(answer.groups[0].members) == size


@row(
    "LeaveGroup of one, and the next generation",
    "members",
    MEMBERS,
    "LeaveGroup",
    after="JoinGroup and SyncGroup of new members",
)
async def leave(members: Members, size: int) -> None:
    """The leader of the generation leaves; in the next one its assignments come first."""
    await members.node.measure(leave_request([members.leader]))
    await members.join([member for member in members.ids if member != members.leader])
    assert len(members.ids) == size - 1
    await members.sync(leader_first=True)


@row(
    "JoinGroup while members wait for their assignments",
    "members",
    MEMBERS,
    "JoinGroup",
    after="JoinGroup and SyncGroup of new members",
)
async def interrupt(members: Members, size: int) -> None:
    """A new member joins; the assignments are withdrawn, and everyone joins again."""
    (fresh,) = await members.node.measure(join(""))
    newcomer = join(fresh.member_id)
    rejoins = [join(member) for member in members.ids]
    joined = await members.node.measure_together([newcomer], rejoins)
    members.on_joined(joined[0] + joined[1])
    (another,) = await members.node.measure(join(""))
    waiting = [members.sync_request(m) for m in members.ids if m != members.leader]
    refused, *joined = await members.node.measure_together(
        waiting, [join(another.member_id)], [join(member) for member in members.ids]
    )
    assert {answer.error_code for answer in refused} == {RebalanceInProgress.code}
    members.on_joined(joined[0] + joined[1])
    await members.sync()


@row(
    "loading of a group",
    "members",
    MEMBERS,
    "coordinator.loading._load_queued",
    after="JoinGroup and SyncGroup of new members",
)
async def load(members: Members, size: int) -> None:
    service = members.node.parts.groups().service
    with members.node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 1)
        await trio.sleep(10)
    loaded = (await members.describe()).members
    assert {member.member_id for member in loaded} == set(members.ids)
    assert all(member.member_assignment == b"assigned" for member in loaded)


def leave_request(ids: Sequence[str]) -> LeaveGroupRequest:
    shape = LeaveGroupRequest.MemberIdentity
    return LeaveGroupRequest(group_id=GROUP, members=[shape(member_id=each) for each in ids])


@row(
    "LeaveGroup of all",
    "members",
    MEMBERS,
    "LeaveGroup",
    after="JoinGroup and SyncGroup of new members",
)
async def leave_together(members: Members, size: int) -> None:
    (answer,) = await members.node.measure(leave_request(members.ids))
    assert not any(member.error_code for member in answer.members)
    assert (await members.describe()).group_state == "Empty"


@row("end of all sessions", "members", MEMBERS, "coordinator.runtime._keep_deadlines")
async def expire(members: Members, size: int) -> None:
    await members.join_anew(size)
    await members.sync()
    with members.node.meter.measuring():
        await trio.sleep(2 * SESSION_MS / 1000)
    assert (await members.describe()).group_state == "Empty"


@row("members that do not sync in time", "members", MEMBERS, "coordinator.runtime._keep_deadlines")
async def expire_unsynced(members: Members, size: int) -> None:
    await members.join_anew(size)
    with members.node.meter.measuring():
        await trio.sleep(2 * REBALANCE_MS / 1000)
    assert (await members.describe()).group_state == "Empty"
