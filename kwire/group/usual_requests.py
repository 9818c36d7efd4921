"""The usual requests of group members, each decided in one step.

Most heartbeats only move the deadline of the member's session, and most commits come from a member
of a stable group. A function here handles such a request and returns its result; for every other
request it returns None, or raises KafkaError, without having changed anything, and the general path
(:class:`kwire.group.shard.GroupShard`) decides.

Rules: the general path is the authority, and a function here must leave the groups, their deadlines
and the log as the general path would (``tests/handlers/test_usual_group_requests.py`` compares the
two). No request is answered while a record of the group's partition waits for its commit. Except
for a failed commit, all errors are raised by the general path.
"""

from functools import partial
from typing import TypeAlias

from kwire.coordinator.decision import Decision, Timer
from kwire.coordinator.draft import Draft
from kwire.group.commit_records import CommittedOffset, add_commits
from kwire.group.kinds import GroupKinds
from kwire.group.model import ClassicGroupState
from kwire.group.offsets import GroupChange
from kwire.group.shard import GroupShard
from kwire.waits import Slow

Commits: TypeAlias = list[tuple[tuple[str, bytes], list[CommittedOffset]]]
"""The name and id of each topic, and its committed offsets."""
Heartbeat: TypeAlias = tuple[str, int, int]
"""The id and the epoch of a member, and the interval of its heartbeats."""


def heartbeat(groups: GroupKinds, group_id: str, generation: int, member_id: str) -> int | None:
    """Restart the session of a member of a stable classic group; return the error code 0."""
    shard = groups.service.find_settled(groups.partition_of(group_id))
    group = None if shard is None else shard.machine.groups.get(group_id)
    if (
        group is None
        or group.state is not ClassicGroupState.STABLE
        or generation != group.generation
    ):
        return None
    member = group.members.get(member_id)
    if shard is None or member is None:
        return None
    name = ("session", group_id, member_id)
    groups.service.postpone(shard, name, member.session_timeout_ms)
    return 0


def consumer_heartbeat(
    groups: GroupKinds, group_id: str, member_id: str, epoch: int, client: tuple[str, str]
) -> Slow[Heartbeat] | Heartbeat | None:
    """Restart the session of a member that keeps its partitions; move it to the target's epoch.

    Returns the answer, or a wait for the commit of the new epoch. The request contains the two ids
    and the epoch, and perhaps the partitions that the member owns. ``client`` is the client's id
    and address, which the general path records if they have changed. Raises KafkaError as
    :func:`commit` does.
    """
    service = groups.service
    shard = service.ready(groups.partition_of(group_id))
    group = shard.machine.consumer_group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        return None
    consumers = shard.machine.consumer
    topics, target_epoch = consumers.topics(), group.assignment_epoch
    if (
        epoch <= 0
        or epoch != member.epoch
        or member.classic is not None
        or (member.client_id, member.client_host) != client
        or group.regex_members
        or group.checked_version is not topics.version
        or group.epoch > target_epoch
        or consumers.is_computing(group_id)
    ):
        return None
    settings = consumers.settings_of(group_id)
    name, timeout_ms = ("consumer-session", group_id, member_id), settings.session_timeout_ms
    answer = member_id, target_epoch, settings.heartbeat_interval_ms
    if member.is_reconciled_to(target_epoch):
        if not service.is_settled(shard):
            return None
        service.postpone(shard, name, timeout_ms)
        return answer
    from kwire.group.consumer.epoch_moves import epoch_move

    moment = service.moment
    draft = epoch_move(group, member, topics, moment.wall_ms)
    if draft is None:
        return None
    timers = ((name, moment.now + timeout_ms / 1000),)
    wait = service.write(shard, Decision(draft=draft, timers=timers))
    return answer if wait is None else Slow(partial(_after, wait, answer))


async def _after(wait: Slow[None], answer: Heartbeat) -> Heartbeat:
    await wait.finish()
    return answer


def commit(
    groups: GroupKinds, group_id: str, epoch: int, member_id: str, topics: Commits
) -> Slow[None] | bool:
    """Commit a member's offsets; return False to leave the request to the general path.

    Returns True if they are committed, or a wait for the commit. ``epoch`` is the generation or the
    member's epoch. Raises KafkaError if the append fails; the general path then repeats it, which
    is harmless, because it commits the same offsets.
    """
    service = groups.service
    shard = service.ready(groups.partition_of(group_id))
    moment = service.moment
    timers = _session_of_committer(shard.machine, group_id, epoch, member_id, moment.now)
    if timers is None or not _has_room_for(shard.machine, topics):
        return False
    draft = Draft(moment.wall_ms, GroupChange(group_id))
    for topic, offsets in topics:
        add_commits(draft, topic, offsets)
    wait = service.write(shard, Decision(draft=draft, timers=timers))
    return True if wait is None else wait


def _session_of_committer(
    machine: GroupShard, group_id: str, epoch: int, member_id: str, now: float
) -> tuple[Timer, ...] | None:
    """Return the deadline that a commit moves, if any; None if the client may not commit."""
    group = machine.groups.get(group_id)
    if group is not None:
        member = group.members.get(member_id)
        if (
            group.state is not ClassicGroupState.STABLE
            or epoch != group.generation
            or member is None
        ):
            return None
        return ((("session", group_id, member_id), now + member.session_timeout_ms / 1000),)
    consumers = machine.consumer_group(group_id)
    consumer = None if consumers is None else consumers.members.get(member_id)
    return None if consumer is None or epoch < 0 or epoch != consumer.epoch else ()


def _has_room_for(machine: GroupShard, topics: Commits) -> bool:
    """Return whether all metadata are short enough."""
    limit = machine.settings().offset_metadata_max_bytes
    return all(len(each[3] or "") <= limit for _, offsets in topics for each in offsets)
