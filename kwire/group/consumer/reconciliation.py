"""The next assignment of one member, on its way to the target.

A member first gives up the partitions that the target takes away (UNREVOKED). Then it moves to the
target's epoch, gets the partitions that are free, and waits for partitions that others have not
given up yet (UNRELEASED). So a partition never has two owners. Each function is pure and returns
the member, unchanged if there is nothing to do.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from kwire.errors import FencedMemberEpoch
from kwire.group.consumer.model import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Owned,
    Partitions,
)


class OwnedTopic(Protocol):
    """The partitions of one topic that a member claims to own."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> Sequence[int]: ...


def reconcile(
    group: ConsumerGroup,
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: frozenset[bytes],
    owned: Sequence[OwnedTopic] | None,
    *,
    has_subscription_changed: bool,
) -> ConsumerMember:
    """Return a member that has not reached its target, after one step towards it.

    ``owned`` are the partitions that the member claims to own; None if it does not say.
    ``subscribed`` has the ids of the topics that the member subscribes to now.
    """
    match member.state:
        case MemberState.STABLE if member.epoch == target_epoch:
            return _drop_unsubscribed(member, subscribed, owned)
        case MemberState.UNREVOKED if _owns_any(owned, member.revoking):
            if has_subscription_changed:
                return _drop_unsubscribed(member, subscribed, owned)
            return member
        case MemberState.UNKNOWN if owned is None or owned:
            raise FencedMemberEpoch(
                "The consumer group member is in a unknown state. The member must abandon all its "
                "partitions and rejoin."
            )
    return _advance(group, member, target_epoch, target, subscribed, owned)


def _owns_any(owned: Sequence[OwnedTopic] | None, revoking: Owned) -> bool:
    """Return whether the member may own a partition that it has to give up."""
    if owned is None:
        return True
    return any(
        number in revoking.get(topic.topic_id, {}) for topic in owned for number in topic.partitions
    )


def _drop_unsubscribed(
    member: ConsumerMember, subscribed: frozenset[bytes], owned: Sequence[OwnedTopic] | None
) -> ConsumerMember:
    """Take away the topics that the member no longer subscribes to; its epoch stays.

    A member without any topics is written again even if it has nothing, as by Kafka.
    """
    dropped = {t: epochs for t, epochs in member.assigned.items() if t not in subscribed}
    if not dropped and (subscribed or member.revoking):
        return member
    assigned = {t: epochs for t, epochs in member.assigned.items() if t in subscribed}
    revoking = dict(member.revoking)
    for topic_id, epochs in dropped.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **epochs}
    member = member.move_to(member.epoch, assigned=assigned)
    if revoking and _owns_any(owned, revoking):
        return member._replace(state=MemberState.UNREVOKED, revoking=revoking)
    return member


def _advance(
    group: ConsumerGroup,
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: frozenset[bytes],
    owned: Sequence[OwnedTopic] | None,
) -> ConsumerMember:
    assigned: dict[bytes, Mapping[int, int]] = {}
    revoking: dict[bytes, Mapping[int, int]] = {}
    waits = False
    topics = {**dict.fromkeys(target), **dict.fromkeys(member.assigned)}
    gained: dict[bytes, list[int]] = {}
    for topic_id in topics:
        numbers = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset[int]()
        epochs = member.assigned.get(topic_id, {})
        if epochs and epochs.keys() == numbers:  # Most members keep most of their partitions.
            assigned[topic_id] = epochs
            continue
        same = {number: epoch for number, epoch in epochs.items() if number in numbers}
        if same:
            assigned[topic_id] = same
        if len(same) < len(epochs):
            revoking[topic_id] = {n: epoch for n, epoch in epochs.items() if n not in numbers}
        own_revoking = member.revoking.get(topic_id, {})
        free = [
            number
            for number in numbers - same.keys()
            if number in own_revoking or group.owner_epoch(topic_id, number) == -1
        ]
        waits = waits or len(free) + len(same) < len(numbers)
        if free:
            gained[topic_id] = free
    if revoking and _owns_any(owned, revoking):
        return member.move_to(
            member.epoch, state=MemberState.UNREVOKED, assigned=assigned, revoking=revoking
        )
    for topic_id, free in gained.items():
        new = dict.fromkeys(free, target_epoch)
        assigned[topic_id] = {**assigned.get(topic_id, {}), **new}
    return member.move_to(
        target_epoch,
        state=MemberState.UNRELEASED if waits else MemberState.STABLE,
        assigned=assigned,
        revoking={},
    )
