"""Members whose partitions the coordinator assigns (KIP-848): they join, move, commit, lie, vanish.

Invariants 66, 69, 72 and 74 are checked with each response. A partition has one owner at an epoch,
and never a second one while the first has kept its session and gives nothing up. An epoch that the
coordinator confirmed is never lost. A commit is accepted from the newest owner only, and a new
owner finds every acknowledged commit. In the end the members have all partitions, and each the
partitions of its target (invariant 70).
"""

from collections.abc import Sequence
from math import inf
from typing import Final

import attrs
import trio

from kwire import errors
from kwire.codec.messages.consumer_group_describe import Assignment, ConsumerGroupDescribeRequest
from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from simulation.replication.checks import TOPIC
from simulation.replication.clients import Answered, SimClient
from simulation.replication.consumers import take_committed
from simulation.replication.history import demand

GROUP: Final = "assigned"
SESSION_S: Final = 6.0
_REBALANCE_S: Final = 4.0
_LEAVE: Final = -1
_NO_EPOCH: Final = 0
_WITH_EPOCHS: Final = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""
_UNKNOWN: Final = -99
"""The code for a missing response, in place of an error code."""
_NO_MEMBER: Final = frozenset({errors.UnknownMemberId.code, errors.FencedMemberEpoch.code})
"""The error codes after which a member gives up its partitions and rejoins."""
_LIE: Final = 1_000
"""The number that a lying member adds to its epoch, which no group epoch reaches."""


@attrs.define(eq=False)
class AssignedBook:
    """The assignments that the members of the group received, and their acknowledged commits."""

    partition_count: int
    owners: dict[tuple[int, int], str] = attrs.field(factory=dict)
    """The member that owns a partition at an epoch, by both."""
    newest: dict[int, int] = attrs.field(factory=dict)
    """The newest epoch at which a member has owned a partition, by partition."""
    acknowledged: dict[int, int] = attrs.field(factory=dict)
    """The largest acknowledged commit, by partition."""
    members: list["AssignedMember"] = attrs.field(factory=list)

    def on_owner(
        self, partition: int, epoch: int, owner: "AssignedMember", *, is_current: bool
    ) -> None:
        """Record an owner; raise AssertionError if the partition has another one.

        Without ``is_current``, the answer may be that of a former coordinator, which does not know
        to whom the next coordinator has given the partition.
        """
        former = self.owners.setdefault((partition, epoch), owner.member_id)
        demand(
            former == owner.member_id,
            f"epoch {epoch}: partition {partition} is {former}'s and {owner.member_id}'s",
        )
        for other in self.members if is_current else ():
            demand(
                other is owner or not other.surely_owns(partition),
                f"partition {partition} is given to {owner.member_id} at epoch {epoch},"
                f" while {other.member_id} owns it at epoch {other.epoch}",
            )
        self.newest[partition] = max(epoch, self.newest.get(partition, _NO_EPOCH))


@attrs.define(eq=False)
class AssignedMember(SimClient):
    """One member, which sometimes leaves, vanishes, pauses, or lies about its epoch."""

    book: AssignedBook
    is_ending: bool = False
    """True once the member must stay in the group."""
    member_id: str = ""
    epoch: int = _NO_EPOCH
    target: frozenset[int] = frozenset()
    """The partitions that the coordinator has assigned last."""
    owned: frozenset[int] = frozenset()
    is_sure: bool = False
    """True while the coordinator knows what the member owns: each heartbeat had a response."""
    _safe_until: float = 0.0
    """The earliest time at which the member's session may end."""
    _revoked_until: float = inf
    """The earliest end of the time that the member has to give up partitions."""
    _unanswered_since: float = inf
    """The time of the first heartbeat that was sent after the last one with an answer.

    The coordinator may have taken partitions from the member in an answer that did not arrive.
    """
    _offsets: dict[int, int] = attrs.field(factory=dict)
    """By owned partition, the next offset to commit."""
    _count: int = 0

    def surely_owns(self, partition: int) -> bool:
        """Return whether no other member may get a partition of this one now."""
        return partition in self.owned and self.is_sure and not self._may_be_fenced()

    def _may_be_fenced(self) -> bool:
        return trio.current_time() >= min(self._safe_until, self._revoked_until)

    async def run(self) -> None:
        self.book.members.append(self)
        while True:
            self._begin()
            await self._work()

    def _begin(self) -> None:
        """Become another member, which has not joined yet."""
        self._count += 1
        self.member_id = f"{-self.id}-{self._count}"
        self._give_up()

    def _give_up(self) -> None:
        """Forget the membership: the coordinator no longer knows the member."""
        self.epoch = _NO_EPOCH
        self.target = self.owned = frozenset()
        self.is_sure = False
        self._revoked_until = self._unanswered_since = inf
        self._offsets.clear()

    async def _work(self) -> None:
        """Send heartbeats, commit and move, until the membership ends."""
        while True:
            await trio.sleep(self.random.uniform(0.1, 0.6))
            dice = self.random.random()
            if dice < 0.06 and not self.is_ending and self.epoch != _NO_EPOCH:
                if await self._go_away():
                    return
            elif dice < 0.10 and self.epoch != _NO_EPOCH:
                await self._lie()
            elif dice < 0.45 and self.owned:
                await self._commit(self.epoch, self._any_owned())
            else:
                await self._beat()

    # -- heartbeats

    async def _beat(self) -> int:
        """Give up what is no longer assigned, and send a heartbeat; return the error code."""
        if self.owned - self.target and self.random.random() < 0.8:
            self.owned &= self.target
        sent_at, owned = trio.current_time(), self.owned
        self._unanswered_since = min(self._unanswered_since, sent_at)
        # Without a response to the last one the member says everything again, as clients do.
        is_full = not self.is_sure or self.random.random() < 0.1
        was_sure, self.is_sure = self.is_sure, False
        answer, is_current = await self._heartbeat(self.epoch, is_full=is_full)
        if answer is None:
            return _UNKNOWN
        if answer.error_code in _NO_MEMBER:
            self._demand_fenced(was_sure and is_current)
            self._give_up()
        if answer.error_code != errors.NONE:
            return int(answer.error_code)
        demand(
            answer.member_epoch >= self.epoch,
            f"{self.member_id} was at epoch {self.epoch}, is at {answer.member_epoch}",
        )
        if is_current:
            self.is_sure, self._safe_until = True, sent_at + SESSION_S
        await self._on_assigned(answer, owned, is_current=is_current)
        return errors.NONE

    async def _heartbeat(self, epoch: int, *, is_full: bool) -> Answered:
        numbers = sorted(self.owned)
        topic_id = self._topic_id()
        if topic_id is None:
            return Answered(None, is_current=False)
        owned = [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
        ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=int(_REBALANCE_S * 1000) if is_full or epoch == 0 else -1,
            subscribed_topic_names=[TOPIC] if is_full or epoch == 0 else None,
            topic_partitions=owned if numbers else [],
        )
        return await self.call_coordinator(GROUP, request, version=1)

    def _topic_id(self) -> bytes | None:
        image = self.world.image(self.random)
        topic = None if image is None else image.topic(TOPIC)
        return None if topic is None else topic.id

    async def _on_assigned(
        self,
        answer: ConsumerGroupHeartbeatResponse,
        owned: frozenset[int],
        *,
        is_current: bool,
    ) -> None:
        """Take up the epoch, and the assignment if the response has one."""
        is_new = answer.member_epoch != self.epoch
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            partitions = (p for t in answer.assignment.topic_partitions for p in t.partitions)
            self.target = frozenset(partitions)
        if owned <= self.target:
            self._revoked_until = inf
        elif self._revoked_until == inf:
            self._revoked_until = self._unanswered_since + _REBALANCE_S
        if is_current:
            self._unanswered_since = inf
        if is_new or answer.assignment is not None:
            for partition in self.target:
                self.book.on_owner(partition, self.epoch, self, is_current=is_current)
        added = self.target - owned
        if added and not self.owned - self.target and await self._read_offsets(added):
            self.owned |= added & self.target

    def _demand_fenced(self, was_sure: bool) -> None:
        """Check that a member is not removed before its session ends (invariant 70)."""
        demand(
            not was_sure or self._may_be_fenced(),
            f"{self.member_id} is fenced at epoch {self.epoch} before its session ends",
        )

    async def _lie(self) -> None:
        """Claim an epoch or a partition that is not the member's; nothing must be accepted."""
        others = frozenset(range(self.book.partition_count)) - self.owned - self.target
        if others and self.is_sure and self.random.random() < 0.5:
            code = await self._commit(self.epoch - 1, self.random.choice(sorted(others)))
            demand(code != errors.NONE, f"a commit of {others} in an older epoch is accepted")
            return
        epoch = self.epoch + _LIE
        answer, _ = await self._heartbeat(epoch, is_full=self.random.random() < 0.5)
        if answer is not None:
            demand(answer.error_code != errors.NONE, f"a heartbeat of epoch {epoch} is accepted")
        if self.owned:
            code = await self._commit(epoch, self._any_owned())
            demand(code != errors.NONE, f"a commit of epoch {epoch} is accepted")

    async def _go_away(self) -> bool:
        """Leave, vanish, or pause past the session; return whether the membership is over."""
        dice = self.random.random()
        if dice < 0.3:
            self.is_sure, self.owned = False, frozenset()
            await self._heartbeat(_LEAVE, is_full=False)
        if dice < 0.6:
            self.is_sure = False
            await trio.sleep(self.random.uniform(0, SESSION_S))
            return True
        await trio.sleep(self.random.uniform(1, 2.5) * SESSION_S)
        if self.owned:
            await self._commit(self.epoch, self._any_owned())
        return False

    # -- offsets

    async def _read_offsets(self, partitions: frozenset[int]) -> bool:
        """Fetch the offsets of new partitions, and compare; return whether that worked."""
        least = {partition: self.book.acknowledged.get(partition, 0) for partition in partitions}
        each = OffsetFetchRequest.OffsetFetchRequestGroup
        topic = each.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=sorted(partitions))
        group = each(
            group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch, topics=[topic]
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        answer, is_current = await self.call_coordinator(GROUP, request, version=_WITH_EPOCHS)
        if answer is None or not is_current or answer.groups[0].error_code != errors.NONE:
            return False
        return take_committed(answer.groups[0].topics[0].partitions, least, self._offsets, GROUP)

    def _any_owned(self) -> int:
        return self.random.choice(sorted(self.owned))

    async def _commit(self, epoch: int, partition: int) -> int:
        """Commit the next offset of a partition; return the error code."""
        newest = self.book.newest.get(partition, _NO_EPOCH)
        offset = self._offsets.get(partition, 0) + 1
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        committed = topic.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=self.member_id,
            topics=[topic(name=TOPIC, partitions=[committed])],
        )
        self._offsets[partition] = offset
        answer, _ = await self.call_coordinator(GROUP, request, version=_WITH_EPOCHS)
        if answer is None:
            return _UNKNOWN
        code = int(answer.topics[0].partitions[0].error_code)
        if code == errors.NONE:
            owner = self.book.owners.get((partition, newest))
            demand(
                owner in (None, self.member_id),
                f"{self.member_id} commits {partition} at epoch {epoch}, but it was {owner}'s at"
                f" epoch {newest}",
            )
            acknowledged = self.book.acknowledged
            acknowledged[partition] = max(offset, acknowledged.get(partition, 0))
        return code

    # -- the end

    async def is_described(self, members: Sequence["AssignedMember"]) -> bool:
        """Return whether the coordinator reports these members, stable, with what they own."""
        request = ConsumerGroupDescribeRequest(
            group_ids=[GROUP], include_authorized_operations=False
        )
        answer, _ = await self.call_coordinator(GROUP, request, version=1)
        if answer is None or answer.groups[0].error_code != errors.NONE:
            return False
        (group,) = answer.groups
        reported = {
            member.member_id: (
                member.member_epoch,
                _numbers(member.assignment),
                _numbers(member.target_assignment),
            )
            for member in group.members
        }
        owned = {m.member_id: (m.epoch, m.owned, m.owned) for m in members}
        return group.group_state == "Stable" and reported == owned


def _numbers(assignment: Assignment) -> frozenset[int]:
    return frozenset(p for topic in assignment.topic_partitions for p in topic.partitions)


def own_all(members: Sequence[AssignedMember], partition_count: int) -> bool:
    """Return whether the members own all partitions, each one once and all at one epoch."""
    partitions = [partition for member in members for partition in member.owned]
    return (
        len({member.epoch for member in members}) == 1
        and all(member.owned == member.target for member in members)
        and sorted(partitions) == list(range(partition_count))
    )
