"""Mistakes with groups whose partitions the coordinator assigns; the simulation must catch them."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from kwire.codec.messages.consumer_group_records import TopicPartitions
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.coordinator.decision import NOTHING, Decision, Moment, Record, Step
from kwire.errors import StaleMemberEpoch
from kwire.group.consumer import fencing, heartbeat, reconciliation, records
from kwire.group.consumer.member_update import MemberUpdate
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember, Owned, Partitions
from kwire.group.consumer.reconciliation import OwnedTopic
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.consumer.shard import ConsumerShard
from kwire.group.consumer.topics import Topics
from kwire.group.decision_builder import DecisionBuilder
from simulation.raft.mutations import Mutation

_check_commit = ConsumerGroup.check_commit
_remove_members = fencing.remove_members
_follow_epoch = MemberUpdate.follow_epoch
_apply = records.apply


def _accept_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> None:
    """Accept a commit by a member in its present epoch or an older one."""
    member = group.require_member(request.member_id)
    if request.generation_id_or_member_epoch > member.epoch:
        raise StaleMemberEpoch


def _accept_epoch(
    group: ConsumerGroup, member: ConsumerMember, epoch: int, owned: Sequence[OwnedTopic] | None
) -> None:
    """Accept a heartbeat of any epoch."""


def _owns_none(owned: Sequence[OwnedTopic] | None, revoking: Owned) -> bool:
    return False


def _is_free(group: ConsumerGroup, topic_id: bytes, partition: int) -> int:
    return -1


def _never_fence(
    shard: ConsumerShard, kind: str, group_id: str, member_id: str, moment: Moment
) -> Decision:
    return NOTHING


def _accept_removed(group: ConsumerGroup, request: OffsetCommitRequest) -> None:
    """Accept a commit by a client that is no longer a member."""
    if request.member_id in group.members:
        _check_commit(group, request)


def _end_early(
    builder: DecisionBuilder, group_id: str, member: ConsumerMember, settings: ConsumerSettings
) -> None:
    """Give a member a quarter of its session timeout."""
    timeout_ms = settings.session_timeout_ms // 4
    builder.start_timer(("consumer-session", group_id, member.member_id), timeout_ms)


def _start_no_deadlines(shard: ConsumerShard) -> Iterator[Step]:
    return iter(())


def _release_nothing(group: ConsumerGroup, member: ConsumerMember) -> None:
    """Leave a member's partitions to it, though it gives them up or is removed."""


def _forget_epoch(groups: dict[str, ConsumerGroup], record: Record) -> None:
    _apply(groups, record)
    for group in groups.values():
        if not group.members:
            group.epoch = group.assignment_epoch = 0


def _keep_epoch(
    builder: DecisionBuilder,
    group: ConsumerGroup,
    members: Collection[ConsumerMember],
    topics: Topics,
) -> None:
    """Remove members without the record of the next group epoch, which is the last one."""
    _remove_members(builder, group, members, topics)
    del builder.records[-1]


def _read_nothing(topics: Iterable[TopicPartitions], member_epoch: int) -> Owned:
    return {}


def _skip_target(update: MemberUpdate) -> tuple[int, Partitions]:
    """Return the new epoch with the member's target of the epoch before."""
    epoch, _ = _follow_epoch(update)
    return epoch, update.group.target.get(update.new.member_id, {})


MUTATIONS: Final = (
    Mutation(
        "commits-of-older-epochs-count",
        "a member commits partitions in an older epoch that are no longer its own",
        ((ConsumerGroup, "check_commit", _accept_commit),),
        (69,),
    ),
    Mutation(
        "heartbeats-of-any-epoch-count",
        "the coordinator does not look at the epoch of a heartbeat",
        ((heartbeat, "_check_epoch", _accept_epoch),),
        (74,),
    ),
    Mutation(
        "partitions-move-before-they-are-given-up",
        "the coordinator does not wait until a member has given up its partitions",
        ((reconciliation, "_owns_any", _owns_none),),
        (66,),
    ),
    Mutation(
        "owned-partitions-are-free",
        "a member gets the partitions of its target although others own them",
        ((ConsumerGroup, "owner_epoch", _is_free),),
        (66,),
    ),
    Mutation(
        "silent-members-stay",
        "a member that sends no heartbeats is never fenced",
        ((ConsumerShard, "due", _never_fence),),
        (70,),
    ),
    Mutation(
        "commits-of-removed-members-count",
        "a member that was removed from the group commits in the epoch that it had",
        ((ConsumerGroup, "check_commit", _accept_removed),),
        (69,),
    ),
    Mutation(
        "sessions-end-early",
        "a member is fenced after a quarter of its session timeout",
        ((fencing, "start_session", _end_early),),
        (70,),
    ),
    Mutation(
        "next-coordinator-waits-for-no-member",
        "a coordinator that loads a group starts no sessions",
        ((ConsumerShard, "on_loaded", _start_no_deadlines),),
        (70, 72),
    ),
    Mutation(
        "partitions-are-never-released",
        "the partitions of members that give them up or leave stay owned",
        ((ConsumerGroup, "_release", _release_nothing),),
        (70,),
    ),
    Mutation(
        "empty-groups-begin-at-epoch-0",
        "a group that its last member leaves begins with its first epoch again",
        ((records, "apply", _forget_epoch),),
        (66, 74),
    ),
    Mutation(
        "removed-members-leave-the-epoch",
        "the group epoch does not grow when members leave or are fenced",
        ((fencing, "remove_members", _keep_epoch),),
        (70, 74),
    ),
    Mutation(
        "records-say-nothing-about-owners",
        "the coordinator does not read which partitions a member owns from its record",
        ((records, "_read_owned", _read_nothing),),
        (66, 72),
    ),
    Mutation(
        "former-targets-count-in-the-new-epoch",
        "a member moves to a new epoch with its target of the epoch before",
        ((MemberUpdate, "follow_epoch", _skip_target),),
        (70, 74),
    ),
)
