"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in all their versions.

The codes are those that Apache Kafka 4.3.1 answered to the same requests.
"""

from typing import Any

import pytest

from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from tests.support.handlers.group_node import group_node

Identity = LeaveGroupRequest.MemberIdentity


@pytest.mark.parametrize("version", range(10))
async def test_member_joins_in_every_version(version: int, autojump_clock: object) -> None:
    """Version 3 and older join at once, newer ones with the id of the first answer."""
    async with group_node() as node:
        reply = await node.join(version=version)
        if version >= 4:
            assert (reply.error_code, reply.generation_id, reply.member_id) == (79, -1, "c-1")
            assert reply.protocol_name == (None if version >= 7 else "")
            reply = await node.join(member="c-1", version=version)
        assert (reply.error_code, reply.generation_id) == (0, 1)
        assert (reply.leader, reply.member_id) == ("c-1", "c-1")
        assert reply.protocol_name == "range"
        assert [member.member_id for member in reply.members] == ["c-1"]


@pytest.mark.parametrize(
    ("fields", "code", "member"),
    [
        ({"group": ""}, 24, ""),
        ({"session_timeout_ms": 100}, 26, ""),
        ({"session_timeout_ms": 1_900_000, "member": "zz"}, 26, "zz"),
        ({"member": "zz"}, 25, "zz"),
        ({"protocols": []}, 23, ""),
    ],
)
async def test_join_is_refused_with_kafkas_code(
    fields: dict[str, Any], code: int, member: str
) -> None:
    async with group_node() as node:
        reply = await node.join(**fields)
        assert (reply.error_code, reply.generation_id, reply.member_id) == (code, -1, member)


async def test_join_elsewhere_does_not_repeat_the_member_id() -> None:
    async with group_node() as node:
        node.groups.service.resign_all()
        reply = await node.join(member="zz")
        assert (reply.error_code, reply.member_id) == (16, "")


async def test_member_syncs_and_heartbeats_in_every_version(autojump_clock: object) -> None:
    async with group_node() as node:
        member = (await node.join(version=3)).member_id
        share = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"all")
        for version in range(6):
            both = {"protocol_type": "consumer", "protocol_name": "range"}
            named: dict[str, Any] = both if version > 4 else {}
            reply = await node.ask(
                SyncGroupRequest(
                    group_id="g",
                    generation_id=1,
                    member_id=member,
                    assignments=[share],
                    **named,
                ),
                version,
            )
            assert (reply.error_code, reply.assignment) == (0, b"all")
        for version in range(5):
            beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
            assert (await node.ask(beat, version)).error_code == 0
        assert (
            await node.ask(HeartbeatRequest(group_id="", generation_id=1, member_id="m"))
        ).error_code == 24
        wrong = SyncGroupRequest(group_id="nope", generation_id=1, member_id="x")
        assert (await node.ask(wrong, 4)).error_code == 25
        assert (await node.ask(wrong, 5)).error_code == 23


@pytest.mark.parametrize("version", range(6))
async def test_member_leaves_in_every_version(version: int, autojump_clock: object) -> None:
    async with group_node() as node:
        member = (await node.join(version=3)).member_id

        async def leave(member_id: str, group: str = "g") -> int:
            if version < 3:
                request = LeaveGroupRequest(group_id=group, member_id=member_id)
                return int((await node.ask(request, version)).error_code)
            request = LeaveGroupRequest(group_id=group, members=[Identity(member_id=member_id)])
            reply = await node.ask(request, version)
            return int(reply.error_code or reply.members[0].error_code)

        assert await leave("stranger") == 25
        assert await leave(member, "none") == 25
        assert await leave(member, "") == 24
        assert await leave(member) == 0
        assert await leave(member) == 25


async def test_static_members_leave_by_their_instance_ids(autojump_clock: object) -> None:
    async with group_node() as node:
        await node.join(version=7, group_instance_id="i")
        identities = [
            Identity(member_id="", group_instance_id="i"),
            Identity(member_id="", group_instance_id="k"),
        ]
        reply = await node.ask(LeaveGroupRequest(group_id="g", members=identities))
        assert [(m.group_instance_id, m.error_code) for m in reply.members] == [("i", 0), ("k", 25)]
        assert reply.error_code == 0
