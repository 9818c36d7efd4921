"""The streams group (KIP-1071): its members and their tasks, its topology, its target assignment.

Only applying a record changes the persisted state of a group, so a replayed group equals a live
one. A member is an immutable value; the group keeps indexes over its members, so that no heartbeat
visits all of them.

A task processes one partition number of a subtopology. It is active on one member; on others it may
be a standby, which keeps a copy of the state. Members of one process share a state directory, so a
process has each task at most once.

The epochs are those of consumer groups: the group epoch increases when the input of the assignment
changes, the assignment epoch is the group epoch of the target, and a member's epoch is the
assignment epoch that the member has reached.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import attrs

from kwire.group.assigned import CommittingGroup
from kwire.group.model import STREAMS
from kwire.group.streams.tasks import NO_EPOCH, NOTHING, OwnedTasks, TaskOwners, TaskSet

if TYPE_CHECKING:
    from kwire.group.streams.configuration import Configuration
    from kwire.group.streams.topology import Topology


class MemberState(IntEnum):
    """A member's progress towards its target assignment, with the numbers of the records."""

    STABLE = 1
    UNREVOKED = 2
    """The member has to give up tasks."""
    UNRELEASED = 3
    """Other members still have to give up tasks that this member waits for."""
    UNKNOWN = 127


class StreamsGroupState(Enum):
    """The state of a group, with the names that Kafka's tools print."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """The topics of the topology are missing or do not fit together."""
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class QueryEndpoint(NamedTuple):
    """The address at which a member answers interactive queries."""

    host: str
    port: int


class StreamsMember(NamedTuple):
    """One member of a streams group."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: int = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = NO_EPOCH
    process_id: str = ""
    endpoint: QueryEndpoint | None = None
    tags: tuple[tuple[str, str], ...] = ()
    """Names and values of the client's tags, in order."""
    assigned: OwnedTasks = NOTHING
    revoking: OwnedTasks = NOTHING
    """Tasks that the member still has, but has to give up."""

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has reached the target assignment of this epoch."""
        return self.state == MemberState.STABLE and self.epoch == epoch

    def move_to(self, epoch: int) -> "StreamsMember":
        """Return the member in another epoch; the current epoch becomes the previous one."""
        return self._replace(epoch=epoch, previous_epoch=self.epoch)


@attrs.define(eq=False, repr=False)
class StreamsGroup(CommittingGroup[StreamsMember, TaskSet]):
    """One streams group; its persisted state is changed only by the `apply` methods."""

    kind: ClassVar = STREAMS
    validated_epoch: int = NO_EPOCH
    """The epoch of the topology whose topics were complete at the last group epoch."""
    assignment_configs: Mapping[str, str] = {}
    """The settings of the assignor at the last group epoch."""
    topology: "Topology | None" = None
    owners: TaskOwners = attrs.field(factory=TaskOwners)
    """The processes that have tasks."""
    configuration: "Configuration | None" = None
    """The topology with its topics as last found; in memory only, like the following fields."""
    endpoint_epoch: int = 0
    """Grows when the tasks of a member with an endpoint change."""
    shutdown_by: str | None = None
    """The member that asked all others to shut down."""
    is_delayed: bool = False
    """True while the first assignment waits for further members."""

    # Reading

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if self.stable_counts.get(self.assignment_epoch, 0) < len(self.members):
            return StreamsGroupState.RECONCILING
        return StreamsGroupState.STABLE

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether members of the group read the topic."""
        return bool(self.members) and self.topology is not None and topic in self.topology.sources

    def assigned_since(
        self, member: StreamsMember, topic: str, topic_id: bytes, partition: int
    ) -> int | None:
        if self.topology is None or topic not in self.topology.sources:
            return None
        subtopology_id = self.topology.sources[topic]
        for owned in (member.assigned, member.revoking):
            epoch = owned.active.get(subtopology_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    # Applying records

    def apply_member(self, member: StreamsMember) -> None:
        """Add a member, or replace it."""
        self._forget(self.members.get(member.member_id))
        self.members[member.member_id] = member
        self.owners.add(member.process_id, member.assigned, member.revoking)
        if member.state == MemberState.STABLE:
            self.stable_counts[member.epoch] = self.stable_counts.get(member.epoch, 0) + 1

    def apply_removal(self, member_id: str) -> None:
        """Remove a member; a request to shut down is over once the last member has left."""
        self._forget(self.members.pop(member_id, None))
        if not self.members:
            self.shutdown_by = None

    def index_owners(self) -> None:
        self.owners = TaskOwners()
        for member in self.members.values():
            self.owners.add(member.process_id, member.assigned, member.revoking)

    def _forget(self, member: StreamsMember | None) -> None:
        """Remove a member from the indexes."""
        if member is None:
            return
        self.owners.remove(member.process_id, member.assigned, member.revoking)
        if member.state == MemberState.STABLE:
            count = self.stable_counts.pop(member.epoch) - 1
            if count:
                self.stable_counts[member.epoch] = count
