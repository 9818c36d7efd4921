"""Requests to the coordinators of a broker whose session may have ended.

Another broker may lead their partitions and have acknowledged newer commits and generations.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from kwire import errors
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.raftmeta.broker.session_lease import SessionLease
from tests.support.handlers.group_node import GroupNode, group_node

REFUSED = errors.NotCoordinator.code
SESSION_S = 10


@attrs.define
class Member:
    """The only member of group g, on a node whose lease a test can end."""

    node: GroupNode
    lease: SessionLease
    id: str
    generation: int

    def end_lease(self) -> None:
        self.lease.end = self.node.broker.replicas.now()

    def suspend_machine(self) -> None:
        """Let the lease end during a suspension, which the clock of deadlines does not count."""
        self.lease.end = self.node.broker.replicas.now() + 1000
        self.lease.suspended_s = lambda: 2000.0

    def renew_lease(self) -> None:
        self.lease.keep(self.node.broker.replicas.now())

    async def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.id)
        code: int = (await self.node.ask(request)).error_code
        return code

    async def sync(self) -> int:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
        )
        code: int = (await self.node.ask(request)).error_code
        return code

    async def join(self) -> int:
        return (await self.node.join(member=self.id)).error_code

    async def leave(self) -> int:
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.id)
        code: int = (
            await self.node.ask(LeaveGroupRequest(group_id="g", members=[identity]))
        ).error_code
        return code

    async def describe(self) -> int:
        (group,) = (await self.node.ask(DescribeGroupsRequest(groups=["g"]))).groups
        code: int = group.error_code
        return code

    async def list(self) -> int:
        code: int = (await self.node.ask(ListGroupsRequest())).error_code
        return code

    async def fetch(self) -> int:
        return (await self.node.fetch({"t": [0]})).get("error", {0: 0})[0]

    async def fetch_all(self) -> int:
        return (await self.node.fetch(None)).get("error", {0: 0})[0]

    async def commit(self) -> int:
        codes = await self.node.commit(
            {"t": {0: 8}}, generation_id_or_member_epoch=self.generation, member_id=self.id
        )
        return codes["t"][0]

    async def delete_offsets(self) -> int:
        code: int = (await self.node.ask(OffsetDeleteRequest(group_id="g"))).error_code
        return code

    async def delete(self) -> int:
        (result,) = (await self.node.ask(DeleteGroupsRequest(groups_names=["g"]))).results
        code: int = result.error_code
        return code


@asynccontextmanager
async def member() -> AsyncIterator[Member]:
    async with group_node() as node:
        lease = SessionLease(9.0)
        node.broker.replicas.lease = lease
        reply = await node.join()
        if reply.error_code == errors.MemberIdRequired.code:
            reply = await node.join(member=reply.member_id)
        subject = Member(node, lease, reply.member_id, reply.generation_id)
        assert await subject.sync() == 0
        assert await subject.commit() == 0
        yield subject


KINDS = ("heartbeat", "sync", "join", "leave", "describe", "fetch", "fetch_all", "commit", "delete")


@pytest.mark.parametrize("kind", [*KINDS, "delete_offsets"])
async def test_group_request_is_refused_until_the_lease_is_renewed(
    kind: str, autojump_clock: Any
) -> None:
    """Invariants 34 and 72."""
    async with member() as subject:
        subject.end_lease()
        assert await getattr(subject, kind)() == REFUSED
        subject.renew_lease()
        assert await getattr(subject, kind)() != REFUSED


async def test_groups_are_not_listed_by_a_broker_whose_session_may_have_ended(
    autojump_clock: Any,
) -> None:
    """Clients repeat the listing; an empty one would look like a lost group."""
    async with member() as subject:
        subject.end_lease()
        assert await subject.list() == errors.CoordinatorNotAvailable.code
        subject.renew_lease()
        assert await subject.list() == 0


async def test_join_that_would_wait_is_refused_at_once_after_the_lease(autojump_clock: Any) -> None:
    """Invariant 72: no rebalance begins whose end only the successor could decide."""
    async with member() as subject:
        subject.end_lease()
        with trio.fail_after(1):
            assert (await subject.node.join(version=3)).error_code == REFUSED
        subject.renew_lease()
        assert await subject.heartbeat() == 0, "the group is stable"


@pytest.mark.parametrize("end", [Member.end_lease, Member.suspend_machine])
async def test_join_that_waits_is_refused_when_the_lease_ends(
    autojump_clock: Any, end: Callable[[Member], None]
) -> None:
    """Invariant 72: the successor has the group's next generation, not this broker."""
    async with member() as subject:
        codes: list[int] = []

        async def join_second() -> None:
            reply = await subject.node.join(version=3)
            codes.append(reply.error_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join_second)
            await trio.sleep(1)
            end(subject)
            await trio.sleep(100)
            assert codes == [], "no deadline takes effect after the lease"
            subject.node.groups.service.resign_all()
        assert codes == [REFUSED]


async def test_member_keeps_its_session_while_the_lease_is_over(autojump_clock: Any) -> None:
    """Invariant 71: a member is not expelled for heartbeats that its coordinator refused."""
    async with member() as subject:
        await trio.sleep(SESSION_S - 2)
        assert await subject.heartbeat() == 0
        subject.end_lease()
        await trio.sleep(3 * SESSION_S)
        assert await subject.heartbeat() == REFUSED
        subject.renew_lease()
        await trio.sleep(SESSION_S - 2)
        assert await subject.heartbeat() == 0
        await trio.sleep(SESSION_S + 2)
        assert await subject.heartbeat() == errors.UnknownMemberId.code


async def test_time_without_a_lease_does_not_count_for_sessions(autojump_clock: Any) -> None:
    """The lease is over for less than a session, and no deadline passes meanwhile."""
    async with member() as subject:
        await trio.sleep(SESSION_S - 2)
        assert await subject.heartbeat() == 0
        await trio.sleep(2.5)
        subject.end_lease()
        await trio.sleep(7)
        assert await subject.heartbeat() == REFUSED
        subject.renew_lease()
        await trio.sleep(2)
        assert await subject.heartbeat() == 0


async def test_sessions_of_a_partition_elected_at_the_renewal_are_as_long_as_others(
    autojump_clock: Any,
) -> None:
    async with member() as subject:
        service = subject.node.groups.service
        subject.end_lease()
        await trio.sleep(3600.3)
        subject.renew_lease()
        ((index, shard),) = [each for each in service._shards.items() if len(each[1].timers)]
        epoch = shard.leader_epoch
        service.on_resigned(index)
        service.on_elected(index, epoch + 1)
        await trio.sleep(SESSION_S + 5)
        assert await subject.heartbeat() == errors.UnknownMemberId.code
