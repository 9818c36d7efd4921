"""The classic group: an immutable value, its states and their transitions.

A decision builds a new group; the shard adopts it once the decision's records are written. Only the
fields of a group record are written: the generation, the protocol, the leader and the members with
their assignments. Waiting requests, and member ids that were handed out but not used yet, exist
only in memory, as in Kafka.

Members are sorted by ``order``, the order of their arrival: an immutable map is unordered, and no
response to a client may depend on hashing.
"""

from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Never

import attrs
from immutables import Map

from kwire.coordinator.decision import Record
from kwire.errors import FencedInstanceId, UnknownMemberId

if TYPE_CHECKING:
    from kwire.group.consumer.model import ConsumerGroup, ConsumerMember

CONSUMER: Final = "consumer"
"""The protocol type whose subscriptions the coordinator can read."""
SHARE: Final = "share"
"""The protocol type of share groups."""
STREAMS: Final = "streams"
"""The protocol type of streams groups."""
NONE: Final[Map[str, Never]] = Map()
_ARRIVAL: Final = attrgetter("order")


class ClassicGroupState(Enum):
    """The state of a group, with the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final[dict[ClassicGroupState, frozenset[ClassicGroupState]]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING, ClassicGroupState.DEAD}),
    ClassicGroupState.PREPARING: frozenset(
        {ClassicGroupState.EMPTY, ClassicGroupState.COMPLETING, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.COMPLETING: frozenset(
        {ClassicGroupState.STABLE, ClassicGroupState.PREPARING, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.PREPARING, ClassicGroupState.DEAD}),
    ClassicGroupState.DEAD: frozenset(),
}
"""The states that may follow each state."""


class Member(NamedTuple):
    """One member, with the tickets of its waiting requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol names in order of preference, each with the member's metadata for the leader."""
    assignment: bytes = b""
    order: int = 0
    join_ticket: int | None = None
    earlier_join_tickets: tuple[int, ...] = ()
    """The JoinGroup requests before that of :attr:`join_ticket` that still wait."""
    sync_ticket: int | None = None
    is_new: bool = False
    """True while a member that joined for the first time waits for its first generation."""

    @property
    def join_tickets(self) -> tuple[int, ...]:
        """The waiting JoinGroup requests, the latest last.

        After a broken connection the requests of a member may arrive in any order. All get the same
        answer, because the member may wait for the answer to any of them.
        """
        if self.join_ticket is None:
            return ()
        return (*self.earlier_join_tickets, self.join_ticket)

    def without_join(self) -> "Member":
        """Return the member without waiting JoinGroup requests."""
        return self._replace(join_ticket=None, earlier_join_tickets=())

    def metadata(self, protocol: str | None) -> bytes:
        for name, data in self.protocols:
            if name == protocol:
                return data
        return b""


class ClassicGroup(NamedTuple):
    """A group whose members assign partitions among themselves."""

    group_id: str
    state: ClassicGroupState = ClassicGroupState.EMPTY
    since_ms: int = -1
    """The time when the state was entered, in wall-clock milliseconds."""
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    """None if there are no members, or from the leader's removal until the next generation."""
    members: Map[str, Member] = NONE
    instances: Map[str, str] = NONE
    """Member ids of the static members, by instance id."""
    pending_join: Map[str, bool] = NONE
    """Member ids that were handed out (KIP-394) but have not joined yet."""
    pending_sync: Map[str, bool] = NONE
    """Ids of the members of this generation that have not sent a SyncGroup yet."""
    votes: Map[str, int] = NONE
    """The number of members that support a protocol, by its name."""
    joining_count: int = 0
    """The number of members with a waiting JoinGroup."""
    arrivals: int = 0
    initial_delay: tuple[int, int] | None = None
    """The delay of an empty group's first rebalance and its largest extension, both in ms."""
    has_new_member: bool = False
    """True if a member joined during that delay."""

    @property
    def all_joined(self) -> bool:
        return self.joining_count == len(self.members) and not self.pending_join

    @property
    def can_rebalance(self) -> bool:
        return ClassicGroupState.PREPARING in TRANSITIONS[self.state]

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def members_by_arrival(self) -> list[Member]:
        """Return the members in their order of arrival."""
        return sorted(self.members.values(), key=_ARRIVAL)

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> "ClassicGroup":
        """Return the group in another state."""
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} to {state}"
        return self._replace(state=state, since_ms=now_ms)

    def supports(self, protocol_type: str, names: list[str]) -> bool:
        """Return whether a member with the protocols ``names`` may join."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type and names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.votes.get(name, 0) == count for name in names
        )

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member that sent a request.

        Raises UnknownMemberId, or FencedInstanceId if a newer member has its instance id.
        """
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                raise UnknownMemberId
            if current != member_id:
                raise FencedInstanceId
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId
        return member

    def add(self, member: Member, protocol_type: str) -> "ClassicGroup":
        """Return the group with another member."""
        member = member._replace(order=self.arrivals)
        instances = self.instances
        if member.instance_id is not None:
            instances = instances.set(member.instance_id, member.member_id)
        return self._replace(
            members=self.members.set(member.member_id, member),
            instances=instances,
            pending_join=self.pending_join.delete(member.member_id)
            if member.member_id in self.pending_join
            else self.pending_join,
            votes=_add_votes(self.votes, member, 1),
            joining_count=self.joining_count + (member.join_ticket is not None),
            leader=self.leader if self.members else member.member_id,
            protocol_type=self.protocol_type if self.members else protocol_type,
            arrivals=self.arrivals + 1,
        )

    def replace(self, member: Member) -> "ClassicGroup":
        """Return the group with a member's new state; the member keeps its id and order."""
        old = self.members[member.member_id]
        votes = self.votes
        if old.protocols != member.protocols:
            votes = _add_votes(_add_votes(votes, old, -1), member, 1)
        joining_change = (member.join_ticket is not None) - (old.join_ticket is not None)
        return self._replace(
            members=self.members.set(member.member_id, member),
            votes=votes,
            joining_count=self.joining_count + joining_change,
        )

    def remove(self, member_id: str) -> "ClassicGroup":
        """Return the group without a member or a pending member id."""
        if member_id in self.pending_join:
            return self._replace(pending_join=self.pending_join.delete(member_id))
        member = self.members.get(member_id)
        if member is None:
            return self
        instances = self.instances
        if member.instance_id is not None and instances.get(member.instance_id) == member_id:
            instances = instances.delete(member.instance_id)
        pending_sync = self.pending_sync
        if member_id in pending_sync:
            pending_sync = pending_sync.delete(member_id)
        return self._replace(
            members=self.members.delete(member_id),
            instances=instances,
            pending_sync=pending_sync,
            votes=_add_votes(self.votes, member, -1),
            joining_count=self.joining_count - (member.join_ticket is not None),
            leader=None if self.leader == member_id else self.leader,
        )

    def replace_static_member(self, old_id: str, new_id: str) -> "ClassicGroup":
        """Return the group with a new member id for a restarted static member.

        As in Kafka, the member does not count as new, so its session does not expire while it waits
        for the next generation.
        """
        old = self.members[old_id]
        assert old.instance_id is not None
        member = old.without_join()._replace(member_id=new_id, sync_ticket=None, is_new=False)
        pending_sync = self.pending_sync
        if old_id in pending_sync:
            pending_sync = pending_sync.delete(old_id)
        return self._replace(
            members=self.members.delete(old_id).set(new_id, member),
            instances=self.instances.set(old.instance_id, new_id),
            pending_sync=pending_sync,
            joining_count=self.joining_count - (old.join_ticket is not None),
            leader=new_id if self.leader == old_id else self.leader,
        )

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer, among those that all members support."""
        count = len(self.members)
        candidates = {name for name, votes in self.votes.items() if votes == count}
        preferred: dict[str, int] = {}
        for member in self.members_by_arrival():
            name = next(name for name, _ in member.protocols if name in candidates)
            preferred[name] = preferred.get(name, 0) + 1
        return max(preferred, key=lambda name: preferred[name])


@attrs.define(eq=False, repr=False)
class ProtocolChange:
    """A change of a group's protocol that was built in advance; it is applied in one step.

    Without ``consumer``, the consumer group ends and the decision's state has the classic group.
    """

    group_id: str
    consumer: "ConsumerGroup | None" = None
    """The consumer group that replaces the classic group."""
    records: list[Record] = attrs.field(factory=list)
    """Further records that change the new group."""


class MemberMove(NamedTuple):
    """A member of a consumer group that reaches another epoch; its record is written."""

    group: "ConsumerGroup"
    member: "ConsumerMember"


def _add_votes(votes: Map[str, int], member: Member, step: int) -> Map[str, int]:
    """Return the votes after ``step`` is added to each of a member's protocols."""
    with votes.mutate() as mutation:
        for name, _ in member.protocols:
            count = mutation.get(name, 0) + step
            if count:
                mutation[name] = count
            else:
                mutation.pop(name, None)
        new_votes: Map[str, int] = mutation.finish()
    return new_votes
