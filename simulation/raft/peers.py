"""Several running quorum nodes in one process, connected by direct calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import attrs
import trio

from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.voters import Node
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, Watcher, config_of, voters_of

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import OwnRequest, RaftResponse


@attrs.define(eq=False)
class Member:
    """A node: its storage and watcher, and its quorum service while it runs."""

    id: int
    storage: MemoryStorage = attrs.field(factory=MemoryStorage)
    watcher: Watcher = attrs.field(factory=Watcher)
    quorum: RaftService | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class Members:
    """All nodes of a quorum."""

    nursery: trio.Nursery
    members: dict[int, Member]

    async def call(self, node: Node, request: "OwnRequest") -> "RaftResponse | None":
        """Send a request, which takes 1 ms; raises ConnectionRefusedError if the node is down."""
        await trio.sleep(0.001)
        member = self.members.get(node.id)
        if member is None or member.quorum is None:
            raise ConnectionRefusedError
        return await member.quorum.handle(request)  # type: ignore[arg-type]

    async def start(self, node_id: int) -> RaftService:
        member = self.members[node_id]
        member.watcher = Watcher()
        member.scope = trio.CancelScope()
        member.quorum = RaftService(
            config_of(node_id),
            member.storage,
            clock=TestClock(),
            random=Random(node_id),
            configured=voters_of(*self.members),
            peers=self,
        )
        member.watcher.watch(member.quorum)
        await self.nursery.start(self._run, member)
        return member.quorum

    async def _run(
        self, member: Member, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        assert member.quorum is not None
        with member.scope:
            await member.quorum.run(task_status)

    def kill(self, node_id: int) -> None:
        """Stop a node without a shutdown."""
        member = self.members[node_id]
        member.quorum = None
        member.scope.cancel()

    async def leader(self) -> RaftService:
        """Wait for an active leader and return it."""
        while True:
            for member in self.members.values():
                if member.quorum is not None and member.quorum.leader().is_active:
                    return member.quorum
            await trio.sleep(0.01)


@asynccontextmanager
async def quorum_of(*node_ids: int) -> AsyncIterator[Members]:
    """Run nodes with configured voters inside the context."""
    async with trio.open_nursery() as nursery:
        members = Members(nursery, {node_id: Member(node_id) for node_id in node_ids})
        for node_id in node_ids:
            await members.start(node_id)
        try:
            yield members
        finally:
            nursery.cancel_scope.cancel()
