"""Mistakes that group coordinators can make; the simulation must catch them."""

from typing import Final

from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_records import GroupMetadataValue
from kwire.group import classic, rebalance, requests
from kwire.group.decision_builder import DecisionBuilder
from kwire.group.model import ClassicGroup
from kwire.group.shard import GroupShard
from simulation.raft.mutations import Mutation

_propagate = rebalance.propagate_assignments
_apply_group = GroupShard._apply_group


def _accept_all(shard: GroupShard, builder: DecisionBuilder, request: OffsetCommitRequest) -> None:
    """Accept a commit from any member and any generation."""


def _give_all_to_each(
    builder: DecisionBuilder, group: ClassicGroup, assignments: dict[str, bytes]
) -> ClassicGroup:
    everything = b"".join(assignments.values())
    return _propagate(builder, group, dict.fromkeys(assignments, everything))


def _forget_generation(shard: GroupShard, group_id: str, value: GroupMetadataValue | None) -> None:
    _apply_group(shard, group_id, value)
    if group_id in shard.groups:
        shard.groups[group_id] = shard.groups[group_id]._replace(generation=0)


MUTATIONS: Final = (
    Mutation(
        "commits-of-former-members-count",
        "a coordinator looks at neither member nor generation of a commit",
        ((requests, "check_commit", _accept_all),),
        (69,),
    ),
    Mutation(
        "members-share-a-partition",
        "every member gets all assignments",
        ((classic, "propagate_assignments", _give_all_to_each),),
        (66,),
    ),
    Mutation(
        "coordinators-begin-at-generation-0",
        "a coordinator that loads a group begins at generation 0",
        ((GroupShard, "_apply_group", _forget_generation),),
        (69, 72),
    ),
)
