"""The decision on a ConsumerGroupHeartbeat: a member joins, stays, changes or leaves.

Three steps, as in Kafka: the member is created or updated, which bumps the group epoch if its
subscriptions or the metadata of the group's topics have changed; the target assignment follows the
group epoch, at most once in `group.consumer.assignment.interval.ms`; the member moves towards its
target. All records of the steps are one batch.
"""

import logging
from collections.abc import Sequence
from typing import Final

from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest as Request,
)
from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse as Response,
)
from kwire.codec.messages.consumer_group_heartbeat import TopicPartitions
from kwire.errors import GroupMaxSizeReached, UnreleasedInstanceId
from kwire.group.consumer import fencing
from kwire.group.consumer.member_update import MemberUpdate
from kwire.group.consumer.model import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Owned,
)
from kwire.group.consumer.reconciliation import OwnedTopic
from kwire.group.consumer.records import current_record
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.consumer.target import ConsumerTables
from kwire.group.decision_builder import Client, DecisionBuilder

logger = logging.getLogger(__name__)

_NOTHING: Final = (None, None, None, None, None)
"""The optional fields of a usual heartbeat, which contains none of them."""


def beat(
    tables: ConsumerTables,
    builder: DecisionBuilder,
    group: ConsumerGroup,
    request: Request,
    client: Client,
) -> MemberUpdate:
    """Decide on a heartbeat of a member that joins or stays; return the member's update."""
    settings = tables.settings_of(group.group_id)
    check_room(group, request.member_id, settings)
    owned = request.topic_partitions
    old, former_id = _member(group, request)
    update = MemberUpdate(
        tables, builder, group, settings, old, _with_request(old, request, client), former_id
    )
    if former_id is not None:
        update.replace_static_member()
    update.write_member()
    update.follow_regex()
    update.bump_epoch()
    target_epoch, target = update.follow_epoch()
    if not update.waits_for_target:
        update.move(target_epoch, target, owned)
        builder.answer(builder.ticket, _response(request, old, update.new, settings))
    fencing.start_session(builder, group.group_id, update.new, settings)
    return update


def check_room(group: ConsumerGroup, member_id: str, settings: ConsumerSettings) -> None:
    """Reject a new member of a full group."""
    if len(group.members) >= settings.max_size and member_id not in group.members:
        raise GroupMaxSizeReached(
            f"The consumer group has reached its maximum capacity of {settings.max_size} members."
        )


def _member(group: ConsumerGroup, request: Request) -> tuple[ConsumerMember, str | None]:
    """Return the member before the change, and the id of a static member that it replaces."""
    member_id, instance_id = request.member_id, request.instance_id
    joins = request.member_epoch == 0
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            return (ConsumerMember(member_id) if joins else group.require_member(member_id)), None
    elif not joins:
        member = group.require_static_member(instance_id, member_id)
    else:
        return join_static(group, member_id, instance_id)
    _check_epoch(group, member, request.member_epoch, request.topic_partitions)
    return member, None


def join_static(
    group: ConsumerGroup, member_id: str, instance_id: str, *, is_classic: bool = False
) -> tuple[ConsumerMember, str | None]:
    """Return the joining static member, and the id that it had in the group, if any.

    Raises UnreleasedInstanceId while another member of the consumer protocol has the instance id.
    If one of the two members uses the classic protocol, the joining member replaces the other at
    once, as in the classic protocol.
    """
    former = group.static_member(instance_id)
    if former is None:
        return group.members.get(member_id) or ConsumerMember(member_id), None
    is_modern = former.classic is None and not is_classic
    if is_modern and former.epoch != LEAVE_STATIC_EPOCH:
        raise UnreleasedInstanceId(
            f"Static member {member_id} with instance id {instance_id} cannot join the group "
            f"because the instance id is owned by {former.member_id} member."
        )
    logger.info(
        "static member returned group=%s instance=%s member=%s",
        group.group_id,
        instance_id,
        member_id,
    )
    return former._replace(member_id=member_id, epoch=0, previous_epoch=0), former.member_id


def _check_epoch(
    group: ConsumerGroup, member: ConsumerMember, epoch: int, owned: Sequence[OwnedTopic] | None
) -> None:
    """Fence a member whose epoch is not the current one.

    The previous epoch is accepted if the member owns only partitions that are assigned to it,
    because it may not have received the response with the current epoch.
    """
    if epoch == 0 or epoch == member.epoch:
        return
    is_previous = epoch == member.previous_epoch and epoch < member.epoch
    if not (is_previous and _is_assigned(owned, member.assigned)):
        raise group.fencing(member, epoch)


def _is_assigned(owned: Sequence[OwnedTopic] | None, assigned: Owned) -> bool:
    """Return whether the member owns only partitions that are assigned to it."""
    return owned is not None and all(
        number in assigned.get(topic.topic_id, {}) for topic in owned for number in topic.partitions
    )


def _with_request(member: ConsumerMember, request: Request, client: Client) -> ConsumerMember:
    """Return the member with the request's fields; fields that were not sent stay unchanged."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    regex = request.subscribed_topic_regex
    sent = names, regex, request.instance_id, request.rack_id, request.server_assignor
    if (
        timeout_ms == -1
        and sent == _NOTHING
        and (member.client_id, member.client_host) == (client.client_id, client.client_host)
        and member.classic is None
    ):
        return member
    return member._replace(
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        client_id=client.client_id,
        client_host=client.client_host,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _response(
    request: Request, old: ConsumerMember, new: ConsumerMember, settings: ConsumerSettings
) -> Response:
    """Return the response; it has the assignment if that changed, or for a full request."""
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names, request.subscribed_topic_regex) != (None, None)
        and request.topic_partitions is not None
    )
    response = Response(
        member_id=new.member_id,
        member_epoch=new.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    if request.member_epoch == 0 or is_full or new.assigned != old.assigned:
        response.assignment = Response.Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(epochs))
                for topic_id, epochs in new.assigned.items()
            ]
        )
    return response


def leave(
    builder: DecisionBuilder, group: ConsumerGroup, request: Request
) -> ConsumerMember | None:
    """Answer a member that leaves, and return the member to remove.

    A static member that leaves temporarily is not removed, and keeps its partitions.
    """
    member_id, instance_id = request.member_id, request.instance_id
    if instance_id is None:
        member = group.require_member(member_id)
    else:
        member = group.require_static_member(instance_id, member_id)
    logger.info(
        "member left group=%s member=%s epoch=%d", group.group_id, member_id, request.member_epoch
    )
    response = Response(
        member_id=member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
    )
    builder.answer(builder.ticket, response)
    if instance_id is None or request.member_epoch != LEAVE_STATIC_EPOCH:
        return member
    builder.records.append(current_record(group.group_id, _away(member)))
    return None


def _away(member: ConsumerMember) -> ConsumerMember:
    """Return a static member that is expected back within its session timeout."""
    return member._replace(
        epoch=LEAVE_STATIC_EPOCH,
        assigned={
            topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in member.assigned.items()
        },
        revoking={},
    )


def leaves(request: Request) -> bool:
    return request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)
