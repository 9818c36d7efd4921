"""The decision on a StreamsGroupHeartbeat: a member joins, stays or changes.

Five steps, as in Kafka: the member and the topology are created or updated; the topology is matched
with its topics again if these have changed; the group epoch increases if the input of the
assignment has changed; the target assignment follows the group epoch, after the initial delay and
at most once in `group.streams.assignment.interval.ms`; the member moves towards its target. All
records of the steps are one batch.
"""

import logging
from collections.abc import Generator, Iterable, Mapping
from typing import Final, NamedTuple

import attrs

from kwire.codec.messages.streams_group_heartbeat import Status as ResponseStatus
from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest as Request,
)
from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatResponse as Response,
)
from kwire.codec.messages.streams_group_heartbeat import TaskIds
from kwire.drive import run_steps
from kwire.errors import GroupMaxSizeReached, InvalidRequest
from kwire.group.consumer.topics import Topics, group_hash
from kwire.group.decision_builder import Client, DecisionBuilder
from kwire.group.kind_tables import AT_ONCE, changed_targets
from kwire.group.streams import records, timers
from kwire.group.streams.configuration import Configuration, Status, StatusCode, configuring
from kwire.group.streams.model import (
    MemberState,
    QueryEndpoint,
    StreamsGroup,
    StreamsMember,
)
from kwire.group.streams.reconciliation import reconcile
from kwire.group.streams.records import (
    current_record,
    epoch_record,
    member_record,
    topology_record,
)
from kwire.group.streams.settings import StreamsSettings
from kwire.group.streams.target import NO_TASKS, StreamsTables, Targets, computing, target_size
from kwire.group.streams.tasks import NO_EPOCH, TaskSet
from kwire.group.streams.topology import Topology, topology_from

logger = logging.getLogger(__name__)

JOIN_EPOCH = 0
MATCHED_AT_ONCE: Final = 50
"""The largest number of topics of a topology that are looked up within the decision."""


class Matched(NamedTuple):
    """A large topology that was matched with its topics before the decision on a heartbeat."""

    requested: Topology | None
    """The topology of the request, if it has one."""
    topology: Topology
    version: object
    """The version of the topics."""
    metadata_hash: int
    configuration: Configuration


class Unmatched(Exception):
    """The decision needs the result of :meth:`matching`, which takes longer than one turn."""

    def __init__(self, requested: Topology | None, topology: Topology, group: StreamsGroup) -> None:
        super().__init__(f"the topics of group {group.group_id} have changed")
        self.requested = requested
        self.topology = topology
        self._former = group.metadata_hash, group.configuration

    def matching(self, topics: Topics) -> Generator[None, None, Matched]:
        """Match the topology with its topics, as steps; raises StreamsInvalidTopology."""
        names, version = sorted(self.topology.required), topics.version
        for name in names:
            topics.hash_of(name)  # From now on, the hash is known.
            yield
        metadata_hash = group_hash(topics, names)
        former_hash, configuration = self._former
        if configuration is None or metadata_hash != former_hash:
            configuration = yield from configuring(self.topology, topics)
        return Matched(self.requested, self.topology, version, metadata_hash, configuration)


@attrs.define(eq=False, repr=False)
class Beat:
    """The change of one member by its heartbeat, before any of it is written."""

    tables: StreamsTables
    builder: DecisionBuilder
    group: StreamsGroup
    """The group before the change."""
    settings: StreamsSettings
    old: StreamsMember
    """The member before the change; an empty one if it is new."""
    new: StreamsMember
    topology: Topology
    """The group's topology after the change."""
    configuration: Configuration
    epoch: int = attrs.field(init=False)
    """The group epoch after the change."""
    statuses: list[Status] = attrs.field(factory=list)
    is_delayed: bool = attrs.field(init=False)
    """True while the first assignment waits for more members."""
    starts_target: bool = False
    """True if the change starts to compute a large target."""

    def __attrs_post_init__(self) -> None:
        self.epoch, self.is_delayed = self.group.epoch, self.group.is_delayed

    def write_member(self) -> None:
        """Write the member and the topology if they have changed."""
        group_id, records = self.group.group_id, self.builder.records
        if self.new != self.old:
            records.append(member_record(group_id, self.new))
        if self.group.topology is None:
            records.append(topology_record(group_id, self.topology))
        elif self.new.topology_epoch < self.topology.epoch:
            text = (
                f"The member's topology epoch {self.new.topology_epoch} is behind the group's "
                f"topology epoch {self.topology.epoch}."
            )
            self.statuses.append(Status(StatusCode.STALE_TOPOLOGY, text))

    def bump_epoch(self, metadata_hash: int) -> None:
        """Bump the group epoch if the input of the assignment has changed."""
        group, configs = self.group, self.settings.assignment_configs
        validated_epoch = self.topology.epoch if self.configuration.is_ready else NO_EPOCH
        if (
            self.new == self.old
            and metadata_hash == group.metadata_hash
            and validated_epoch == group.validated_epoch
            and configs == group.assignment_configs
        ):
            return
        self.epoch += 1
        record = epoch_record(group.group_id, self.epoch, metadata_hash, validated_epoch, configs)
        self.builder.records.append(record)
        logger.info("group epoch bumped group=%s epoch=%d", group.group_id, self.epoch)

    def delay(self) -> None:
        """Give further members time to join before the first assignment of an empty group."""
        delay_ms = self.settings.initial_rebalance_delay_ms
        if self.group.members or self.is_delayed or not delay_ms:
            return
        self.is_delayed = True
        timers.start_delay(self.builder, self.group.group_id, delay_ms)

    def follow_epoch(self) -> tuple[int, TaskSet]:
        """Compute the target if it is behind the group epoch; return its epoch and the member's.

        The last target stays in force while it is younger than the assignment interval, and while a
        large target is being computed.
        """
        group, moment, member_id = self.group, self.builder.moment, self.new.member_id
        if self.is_delayed:
            self._note_delay("the configured initial rebalance delay")
            return group.assignment_epoch, NO_TASKS
        last = group.assignment_epoch, group.target.get(member_id, NO_TASKS)
        if group.assignment_epoch >= self.epoch:
            return last
        if group.has_recent_target(self.settings.assignment_interval_ms, moment.wall_ms):
            self._note_delay("the configured assignment interval")
            return last
        if target_size(group, self.configuration, self.settings.standby_count) > AT_ONCE:
            self.starts_target = not self.tables.is_computing(group.group_id)
            self._note_delay("the size of the group")
            return last
        targets = compute_target(
            self.builder,
            group,
            {member_id: self.new},
            self.topology,
            self.configuration,
            self.settings.standby_count,
            self.epoch,
        )
        return self.epoch, targets[member_id]

    def _note_delay(self, reason: str) -> None:
        text = f"Assignment delayed due to {reason}."
        self.statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, text))

    def move(self, epoch: int, target: TaskSet, owned: TaskSet | None) -> None:
        """Move the member towards its target of this epoch, and write what has changed."""
        if self.new.is_reconciled_to(epoch):
            return
        moved = reconcile(self.group, self.new, epoch, target, owned)
        if moved != self.new:
            group_id, builder = self.group.group_id, self.builder
            builder.records.append(current_record(group_id, moved))
            if moved.state == MemberState.UNREVOKED:
                timers.start_revocation(builder, group_id, moved)
            else:
                timers.end_revocation(builder, group_id, moved.member_id)
        self.new = moved

    @property
    def has_new_tasks(self) -> bool:
        return self.new.assigned != self.old.assigned


def compute_target(
    builder: DecisionBuilder,
    group: StreamsGroup,
    changes: Mapping[str, StreamsMember],
    topology: Topology,
    configuration: Configuration,
    standby_count: int,
    epoch: int,
) -> Targets:
    """Compute the target of a small group; write the changes, then the target's epoch."""
    targets = run_steps(computing(group, changes, topology, configuration, standby_count))
    builder.records += changed_targets(records, group, targets, epoch, builder.moment.wall_ms)
    return targets


def beat(
    tables: StreamsTables,
    builder: DecisionBuilder,
    group: StreamsGroup,
    request: Request,
    client: Client,
    matched: Matched | None,
    *,
    may_wait: bool,
) -> Beat:
    """Decide on a heartbeat of a member that joins or stays.

    With ``may_wait``, raise :class:`Unmatched` if ``matched`` is missing.
    """
    settings = tables.settings_of(group.group_id)
    owned = owned_tasks(request)
    old = _member(group, request, settings, owned)
    requested = None
    if request.topology is not None:
        requested = None if matched is None else matched.requested
        requested = requested or topology_from(request.topology)
    topology = _topology(group, requested)
    match = _match(tables, group, topology, matched)
    if match is None:
        unmatched = Unmatched(requested, topology, group)
        if may_wait and len(topology.required) > MATCHED_AT_ONCE:
            raise unmatched
        match = run_steps(unmatched.matching(tables.topics()))
    configuration = match.configuration
    if configuration.is_ready and owned is not None:
        _check_tasks(configuration, owned)
    new = _with_request(old, request, client)
    change = Beat(tables, builder, group, settings, old, new, topology, configuration)
    change.write_member()
    change.bump_epoch(match.metadata_hash)
    change.delay()
    change.move(*change.follow_epoch(), owned)
    timers.start_session(builder, group.group_id, old.member_id, settings)
    return change


def owned_tasks(request: Request) -> TaskSet | None:
    """Return the tasks that the member claims to have; None if it does not say."""
    if request.active_tasks is None or request.standby_tasks is None:
        return None
    return TaskSet(
        _read(request.active_tasks),
        _read(request.standby_tasks),
        _read(request.warmup_tasks or ()),
    )


def _read(tasks: Iterable[TaskIds]) -> dict[str, frozenset[int]]:
    return {each.subtopology_id: frozenset(each.partitions) for each in tasks}


def _member(
    group: StreamsGroup, request: Request, settings: StreamsSettings, owned: TaskSet | None
) -> StreamsMember:
    """Return the member before the change; reject one that may not join or stay."""
    member_id = request.member_id
    if request.member_epoch == JOIN_EPOCH:
        if len(group.members) >= settings.max_size:
            raise GroupMaxSizeReached(
                "The streams group has reached its maximum capacity of "
                f"{settings.max_size} members."
            )
        return group.members.get(member_id) or StreamsMember(member_id)
    member = group.require_member(member_id)
    _check_epoch(group, member, request.member_epoch, owned)
    return member


def _check_epoch(
    group: StreamsGroup, member: StreamsMember, epoch: int, owned: TaskSet | None
) -> None:
    """Fence a member whose epoch is not the current one.

    The previous epoch is accepted if the member has only tasks that are assigned to it, because it
    may not have received the response with the current epoch.
    """
    if epoch == member.epoch:
        return
    is_previous = epoch == member.previous_epoch and epoch < member.epoch
    if not (is_previous and _is_assigned(member, owned)):
        raise group.fencing(member, epoch)


def _is_assigned(member: StreamsMember, owned: TaskSet | None) -> bool:
    """Return whether the member has only tasks that are assigned to it."""
    return owned is not None and all(
        numbers <= frozenset(assigned.get(subtopology_id, ()))
        for tasks, assigned in zip(owned, member.assigned, strict=True)
        for subtopology_id, numbers in tasks.items()
    )


def _topology(group: StreamsGroup, requested: Topology | None) -> Topology:
    """Return the group's topology after the change; the first member sends it."""
    if requested is None:
        if group.topology is None:
            raise InvalidRequest("The group has no topology.")
        return group.topology
    if group.topology is None:
        return requested
    if group.topology.epoch <= requested.epoch and not group.topology.is_equal_to(requested):
        raise InvalidRequest("Topology updates are not supported yet.")
    return group.topology


def _match(
    tables: StreamsTables,
    group: StreamsGroup,
    topology: Topology,
    matched: Matched | None,
) -> Matched | None:
    """Return the result of matching a topology with the newest topics, if it is known."""
    current, version = group.configuration, tables.topics().version
    if current is not None and group.checked_version is version:
        return Matched(None, topology, version, group.metadata_hash, current)
    if matched is not None and matched.version is version and matched.topology is topology:
        return matched
    return None


def _check_tasks(configuration: Configuration, owned: TaskSet) -> None:
    """Reject tasks that the topology does not have."""
    for tasks in owned:
        for subtopology_id, numbers in tasks.items():
            count = configuration.task_counts.get(subtopology_id)
            if count is None:
                raise InvalidRequest(
                    f"Subtopology {subtopology_id} does not exist in the topology."
                )
            for number in numbers:
                if not 0 <= number < count:
                    raise InvalidRequest(
                        f"Task {number} for subtopology {subtopology_id} is invalid. Number of "
                        f"tasks for this subtopology: {count}"
                    )


def _with_request(member: StreamsMember, request: Request, client: Client) -> StreamsMember:
    """Return the member with the request's fields; fields that were not sent stay unchanged."""
    timeout_ms, topology, endpoint = (
        request.rebalance_timeout_ms,
        request.topology,
        request.user_endpoint,
    )
    tags = request.client_tags
    return member._replace(
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        client_id=client.client_id,
        client_host=client.client_host,
        topology_epoch=member.topology_epoch if topology is None else topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint
        if endpoint is None
        else QueryEndpoint(endpoint.host, endpoint.port),
        tags=member.tags if tags is None else tuple(sorted((t.key, t.value) for t in tags)),
    )


def response(request: Request, change: Beat, endpoint_epoch: int) -> Response:
    """Return the response; it has the tasks if they have changed, or for a member that joins."""
    new, group = change.new, change.group
    reply = Response(
        member_id=new.member_id,
        member_epoch=new.epoch,
        heartbeat_interval_ms=change.settings.heartbeat_interval_ms,
        task_offset_interval_ms=0,
        endpoint_information_epoch=endpoint_epoch,
    )
    if request.member_epoch == JOIN_EPOCH or change.has_new_tasks:
        reply.active_tasks = _task_ids(new.assigned.active)
        reply.standby_tasks = _task_ids(new.assigned.standby)
        reply.warmup_tasks = _task_ids(new.assigned.warmup)
    statuses = list(change.statuses)
    if change.configuration.problem is not None:
        statuses.append(change.configuration.problem)
    shutdown_by = group.shutdown_by or (new.member_id if request.shutdown_application else None)
    if shutdown_by is not None:
        text = (
            f"Streams group member {shutdown_by} encountered a fatal error and requested a "
            "shutdown for the entire application."
        )
        statuses.append(Status(StatusCode.SHUTDOWN_APPLICATION, text))
    reply.status = [
        ResponseStatus(status_code=each.code, status_detail=each.text) for each in statuses
    ]
    return reply


def _task_ids(tasks: Mapping[str, Iterable[int]]) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=sorted(numbers))
        for subtopology_id, numbers in tasks.items()
    ]
