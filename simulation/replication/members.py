"""Members of a group in the simulated cluster: they join, share partitions, commit, leave, vanish.

The group uses the classic protocol, in which members assign the topic's partitions themselves.
Invariants 11, 66, 69 and 72 are checked with each response. A partition has one owner per
generation. A commit or heartbeat is rejected if any member has a newer generation, whichever broker
coordinates. A new owner finds every acknowledged commit. In the end all members are in the same
generation (invariant 70).
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from kwire import errors
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from simulation.replication.checks import TOPIC
from simulation.replication.clients import SimClient
from simulation.replication.consumers import take_committed
from simulation.replication.history import demand

GROUP: Final = "members"
_PROTOCOL: Final = "sim"
_SESSION_MS: Final = 6_000
_REBALANCE_MS: Final = 4_000
_NONE: Final = -1
_UNKNOWN: Final = -99
"""The code for a missing response, in place of an error code."""
_NO_MEMBER: Final = frozenset({errors.UnknownMemberId.code, errors.FencedInstanceId.code})
"""The error codes after which a member rejoins as a new member."""
_REJOIN: Final = _NO_MEMBER | {errors.IllegalGeneration.code, errors.RebalanceInProgress.code}


@attrs.define(eq=False)
class GroupBook:
    """The assignments and acknowledgements that the members of the group received."""

    partition_count: int
    owners: dict[int, dict[int, str]] = attrs.field(factory=dict)
    """The member that owns each partition, by generation."""
    generation: int = _NONE
    """The newest generation for which a member has received its assignment."""
    acknowledged: dict[int, int] = attrs.field(factory=dict)
    """The largest acknowledged commit, by partition."""

    def on_assigned(self, generation: int, member_id: str, partitions: tuple[int, ...]) -> None:
        """Record a member's assignment; raise AssertionError if a partition gets two owners."""
        owners = self.owners.setdefault(generation, {})
        for partition in partitions:
            owner = owners.setdefault(partition, member_id)
            demand(
                owner == member_id,
                f"generation {generation}: partition {partition} is {owner}'s and {member_id}'s",
            )
        self.generation = max(self.generation, generation)


@attrs.define(eq=False)
class Member(SimClient):
    """One member, which sometimes vanishes and rejoins as a new member."""

    book: GroupBook
    is_ending: bool = False
    """True once the member must stay in the group."""
    assignment: tuple[int, ...] | None = None
    generation: int = _NONE
    _member_id: str = ""
    _offsets: dict[int, int] = attrs.field(factory=dict)
    """By owned partition, the next offset to commit."""

    async def run(self) -> None:
        while True:
            await self.pause()
            if await self._join():
                await self._work()
            self.assignment = None

    def _demand_current(self, newest: int, what: str) -> None:
        """Check that no request of a generation before ``newest`` was accepted."""
        demand(
            self.generation >= newest,
            f"{what} of generation {self.generation} is accepted after generation {newest}",
        )

    # -- joining

    async def _join(self) -> bool:
        """Join the group and get an assignment; return whether that succeeded."""
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=_PROTOCOL, metadata=b"")
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self._member_id,
            protocol_type=_PROTOCOL,
            protocols=[protocol],
        )
        answer, _ = await self.call_coordinator(GROUP, request, version=5)
        if answer is None:
            return False
        if answer.error_code == errors.MemberIdRequired.code:
            self._member_id = answer.member_id
        elif answer.error_code in _NO_MEMBER:
            self._member_id = ""
        if answer.error_code != errors.NONE:
            return False
        self._member_id, self.generation = answer.member_id, answer.generation_id
        return await self._sync(answer) and await self._read_offsets()

    async def _sync(self, joined: JoinGroupResponse) -> bool:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self._member_id,
            assignments=self._assign(joined) if joined.leader == self._member_id else [],
        )
        answer, _ = await self.call_coordinator(GROUP, request, version=3)
        if answer is None or answer.error_code != errors.NONE:
            if answer is not None and answer.error_code in _NO_MEMBER:
                self._member_id = ""
            return False
        self.assignment = tuple(answer.assignment)
        self.book.on_assigned(self.generation, self._member_id, self.assignment)
        return True

    def _assign(
        self, joined: JoinGroupResponse
    ) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        """Assign the partitions to the members; an assignment has one byte per partition."""
        members = sorted(member.member_id for member in joined.members)
        partitions = range(self.book.partition_count)
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id, assignment=bytes(partitions[index :: len(members)])
            )
            for index, member_id in enumerate(members)
        ]

    async def _read_offsets(self) -> bool:
        """Fetch the committed offsets of the assigned partitions, and compare."""
        assert self.assignment is not None
        least = {
            partition: self.book.acknowledged.get(partition, 0) for partition in self.assignment
        }
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(
            name=TOPIC, partition_indexes=list(self.assignment)
        )
        request = OffsetFetchRequest(group_id=GROUP, topics=[topic], require_stable=True)
        answer, is_current = await self.call_coordinator(GROUP, request, version=7)
        if answer is None or answer.error_code != errors.NONE or not answer.topics:
            return False
        if not is_current:
            return False
        return take_committed(answer.topics[0].partitions, least, self._offsets, GROUP)

    # -- working

    async def _work(self) -> None:
        """Commit and send heartbeats until the generation or the membership ends."""
        while True:
            await trio.sleep(self.random.uniform(0.1, 0.6))
            dice = self.random.random()
            if dice < 0.08 and not self.is_ending:
                await self._go_away()
                return
            code = await (self._commit() if dice < 0.5 else self._send_heartbeat())
            if code in _NO_MEMBER:
                self._member_id = ""
            if code in _REJOIN:
                return

    async def _go_away(self) -> None:
        """Leave the group, vanish without leaving, or pause past the session's end and commit."""
        dice = self.random.random()
        if dice < 0.3:
            request = LeaveGroupRequest(group_id=GROUP, member_id=self._member_id)
            await self.call_coordinator(GROUP, request, version=2)
        if dice < 0.6:
            self._member_id = ""
            await trio.sleep(self.random.uniform(0, _SESSION_MS / 1000))
            return
        await trio.sleep(self.random.uniform(1, 2.5) * _SESSION_MS / 1000)
        await self._commit()

    async def _send_heartbeat(self) -> int:
        newest = self.book.generation
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self._member_id
        )
        answer, is_current = await self.call_coordinator(GROUP, request, version=3)
        if answer is None:
            return _UNKNOWN
        if answer.error_code == errors.NONE and is_current:
            self._demand_current(newest, "a heartbeat")
        return int(answer.error_code)

    async def _commit(self) -> int:
        """Commit the next offset of an owned partition; return the error code."""
        if not self.assignment:
            return errors.NONE
        partition, newest = self.random.choice(self.assignment), self.book.generation
        offset = self._offsets[partition] + 1
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        committed = topic.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation,
            member_id=self._member_id,
            topics=[topic(name=TOPIC, partitions=[committed])],
        )
        self._offsets[partition] = offset
        answer, _ = await self.call_coordinator(GROUP, request, version=7)
        if answer is None:
            return _UNKNOWN
        code = int(answer.topics[0].partitions[0].error_code)
        if code == errors.NONE:
            self._demand_current(newest, "a commit")
            self.book.acknowledged[partition] = max(
                offset, self.book.acknowledged.get(partition, 0)
            )
        return code


def are_assigned(members: Sequence[Member], partition_count: int) -> bool:
    """Return whether all members have assignments of the same generation for all partitions."""
    partitions = [p for member in members for p in member.assignment or ()]
    return (
        len({member.generation for member in members}) == 1
        and all(member.assignment is not None for member in members)
        and sorted(partitions) == list(range(partition_count))
    )
