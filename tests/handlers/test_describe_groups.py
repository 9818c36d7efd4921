"""DescribeGroups, ListGroups and DeleteGroups in all their versions.

The codes are those that Apache Kafka 4.3.1 answered to the same requests.
"""

import pytest
import trio
import trio.testing

from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from tests.support.handlers.group_node import group_node


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_described(version: int, autojump_clock: object) -> None:
    async with group_node() as node:
        await node.join(version=3)
        await node.commit({"t": {0: 1}}, "simple")
        reply = await node.ask(
            DescribeGroupsRequest(
                groups=["g", "simple", "none", ""], include_authorized_operations=version >= 3
            ),
            version,
        )
        g, simple, none, nameless = reply.groups
        assert (g.error_code, g.group_state, g.protocol_type) == (
            0,
            "CompletingRebalance",
            "consumer",
        )
        (member,) = g.members
        assert (member.client_id, member.client_host) == ("c", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (b"", b"")
        assert g.authorized_operations == (3400 if version >= 3 else -2147483648)
        assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])
        assert (none.group_state, none.members) == ("Dead", [])
        assert none.authorized_operations == (3400 if 3 <= version < 6 else -2147483648)
        if version == 6:
            assert (none.error_code, none.error_message) == (69, "Group none not found.")
            assert nameless.error_code == 69
        else:
            assert none.error_code == 0


async def test_assignments_are_shown_while_the_group_rebalances(autojump_clock: object) -> None:
    async with group_node() as node, trio.open_nursery() as nursery:
        first = await node.join(version=3)
        mine = SyncGroupRequest.SyncGroupRequestAssignment
        synced = await node.ask(
            SyncGroupRequest(
                group_id="g",
                generation_id=first.generation_id,
                member_id=first.member_id,
                assignments=[mine(member_id=first.member_id, assignment=b"all")],
            ),
            2,
        )
        assert synced.assignment == b"all"
        nursery.start_soon(lambda: node.join(version=3))
        await trio.testing.wait_all_tasks_blocked()
        (group,) = (await node.ask(DescribeGroupsRequest(groups=["g"]))).groups
        assert group.group_state == "PreparingRebalance"
        shown = [(m.member_metadata, m.member_assignment) for m in group.members]
        assert shown == [(b"", b"all"), (b"", b"")]
        nursery.cancel_scope.cancel()


async def test_groups_are_listed_by_state_and_type(autojump_clock: object) -> None:
    async with group_node() as node:
        await node.join(version=3)
        await node.commit({"t": {0: 1}}, "simple")

        async def names(version: int = 5, **filters: list[str]) -> list[str]:
            reply = await node.ask(ListGroupsRequest(**filters), version)
            assert reply.error_code == 0
            return sorted(group.group_id for group in reply.groups)

        for version in range(6):
            assert await names(version) == ["g", "simple"]
        assert await names(states_filter=["EMPTY"]) == ["simple"]
        assert await names(states_filter=["bogus"]) == []
        assert await names(types_filter=["Classic"]) == ["g", "simple"]
        assert await names(types_filter=["consumer"]) == []
        (shown,) = (await node.ask(ListGroupsRequest(states_filter=["Empty"]))).groups
        assert (shown.protocol_type, shown.group_state, shown.group_type) == (
            "",
            "Empty",
            "classic",
        )


@pytest.mark.parametrize("version", range(3))
async def test_only_empty_groups_are_deleted(version: int, autojump_clock: object) -> None:
    """Invariant 76."""
    async with group_node() as node:
        await node.join(version=3)
        await node.commit({"t": {0: 1}}, "simple")
        names = ["g", "none", "simple", "simple"]
        reply = await node.ask(DeleteGroupsRequest(groups_names=names), version)
        assert [(r.group_id, r.error_code) for r in reply.results] == [
            ("g", 68),
            ("none", 69),
            ("simple", 0),
        ]
        assert await node.fetch(None, "simple") == {}


async def test_broker_that_is_not_coordinator_refuses_groups(autojump_clock: object) -> None:
    async with group_node() as node:
        node.groups.service.resign_all()
        (described,) = (await node.ask(DescribeGroupsRequest(groups=["g"]))).groups
        assert described.error_code == 16
        (result,) = (await node.ask(DeleteGroupsRequest(groups_names=["g"]))).results
        assert result.error_code == 16
        assert (await node.ask(ListGroupsRequest())).groups == []
