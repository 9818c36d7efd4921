"""Mistakes with groups whose partitions the coordinator assigns; the simulation must catch them."""

from collections.abc import Sequence
from typing import Final

from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.coordinator.decision import NOTHING, Decision, Moment
from kwire.errors import StaleMemberEpoch
from kwire.group.consumer import commits, heartbeat, reconciliation
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember, Owned
from kwire.group.consumer.reconciliation import OwnedTopic
from kwire.group.consumer.shard import ConsumerShard
from simulation.raft.mutations import Mutation


def _accept_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> None:
    """Accept a commit by a member in its present epoch or an older one."""
    member = group.require_member(request.member_id)
    if request.generation_id_or_member_epoch > member.epoch:
        raise StaleMemberEpoch


def _accept_epoch(member: ConsumerMember, epoch: int, owned: Sequence[OwnedTopic] | None) -> None:
    """Accept a heartbeat of any epoch."""


def _owns_none(owned: Sequence[OwnedTopic] | None, revoking: Owned) -> bool:
    return False


def _is_free(group: ConsumerGroup, topic_id: bytes, partition: int) -> int:
    return -1


def _never_fence(
    shard: ConsumerShard, group_id: str, member_id: str, moment: Moment, reason: str
) -> Decision:
    return NOTHING


MUTATIONS: Final = (
    Mutation(
        "commits-of-older-epochs-count",
        "a member commits partitions in an older epoch that are not its own any more",
        ((commits, "check_commit", _accept_commit),),
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
        ((ConsumerShard, "_fence", _never_fence),),
        (70,),
    ),
)
