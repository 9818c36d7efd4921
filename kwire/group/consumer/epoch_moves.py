"""The usual step of a member towards a new target: it keeps its partitions and reaches the epoch.

When one member joins or leaves a group, the target of most other members stays the same. Each of
them then needs one record, which differs from its last one only in the epochs. For this step,
the functions here decide as :mod:`~kwire.group.consumer.reconciliation` does, and build the bytes
of :mod:`~kwire.group.consumer.records` without message objects.
"""

from struct import Struct, pack
from typing import Final

from kwire.codec.primitives import uvarint
from kwire.coordinator.draft import Draft
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember, MemberState, Owned
from kwire.group.consumer.topics import Topics
from kwire.group.model import MemberMove

_KEY: Final = Struct(">hh")
_KEY_TYPE: Final = 8
_VALUE: Final = Struct(">hiib")
_VALUE_VERSION: Final = 0
_EPOCHS_TAG: Final = b"\1\0"
"""One tagged field, whose tag is 0."""
_NO_REVOKED_NO_TAGS: Final = b"\1\0"


def epoch_move(
    group: ConsumerGroup, member: ConsumerMember, topics: Topics, wall_ms: int
) -> Draft[MemberMove] | None:
    """Return the move of a member to the target's epoch; None if its partitions would change.

    The member must be behind that epoch, and subscribe to topics only by their names.
    """
    former_id = group.instances.get(member.instance_id or "", member.member_id)
    target, assigned = group.target.get(former_id, {}), member.assigned
    if member.state != MemberState.STABLE or member.revoking or [*target] != [*assigned]:
        return None
    for topic_id, numbers in target.items():
        if assigned[topic_id].keys() != numbers or not numbers:
            return None
        if topics.name_of(topic_id) not in member.topics:
            return None
    moved = member.move_to(group.assignment_epoch)
    draft = Draft(wall_ms, MemberMove(group, moved))
    draft.add(_stored_key(group.group_id, moved.member_id), _stored_value(moved))
    return draft


def _stored_key(group_id: str, member_id: str) -> bytes:
    group, member = group_id.encode(), member_id.encode()
    return b"".join((_KEY.pack(_KEY_TYPE, len(group)), group, pack(">h", len(member)), member))


def _stored_value(member: ConsumerMember) -> bytes:
    """Return the value of a member that is stable, and so has no partitions to give up."""
    head = _VALUE.pack(_VALUE_VERSION, member.epoch, member.previous_epoch, member.state)
    return b"".join((head, _stored_partitions(member.assigned), _NO_REVOKED_NO_TAGS))


def _stored_partitions(owned: Owned) -> bytes:
    parts = [uvarint(len(owned) + 1)]
    for topic_id, epochs in owned.items():
        numbers = sorted(epochs)
        count = len(numbers)
        length, layout = uvarint(count + 1), f">{count}i"
        parts += topic_id, length, pack(layout, *numbers)
        size = uvarint(len(length) + 4 * count)
        parts += _EPOCHS_TAG, size, length, pack(layout, *[epochs[n] for n in numbers])
    return b"".join(parts)
