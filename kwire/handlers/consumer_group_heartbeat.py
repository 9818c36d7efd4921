"""ConsumerGroupHeartbeat (API key 68): a member of a consumer group (KIP-848) joins or stays.

With the same request, a member leaves, changes its subscription and reports the partitions that it
owns; the response has its assignment. As in Kafka, it is served from `group.version` 1 onwards.
"""

from functools import partial
from typing import Final

from kwire.codec.emit_flat import Values
from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kwire.errors import KafkaError
from kwire.group import usual_requests
from kwire.group.decision_builder import Client
from kwire.handlers.shared.consumer_groups import check_enabled
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Flat, handles
from kwire.waits import Slow


def refuse(
    request: ConsumerGroupHeartbeatRequest, error: KafkaError
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=error.code, error_message=error.text, member_epoch=0, heartbeat_interval_ms=0
    )


def heartbeat_values(
    context: Context, group_id: str, member_id: str, epoch: int, rebalance_timeout_ms: int
) -> Values | Slow[ConsumerGroupHeartbeatResponse] | ConsumerGroupHeartbeatResponse | None:
    """Answer a heartbeat with only the member's ids and epoch, which usually changes nothing."""
    if rebalance_timeout_ms != -1 or not member_id.strip():
        return None
    check_enabled(context)
    context.check_allowed("Read", "Group", group_id)
    client = context.client_id, f"/{context.client_host}"
    interval_ms = usual_requests.consumer_heartbeat(
        context.groups, group_id, member_id, epoch, client
    )
    if interval_ms is not None:
        return member_id, epoch, interval_ms
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=epoch
    )
    return _begin(context, request)


_FLAT: Final = Flat(
    function=heartbeat_values,
    since=0,
    response_fields=("member_id", "member_epoch", "heartbeat_interval_ms", "throttle_time_ms"),
)


@handles(ConsumerGroupHeartbeatRequest, refuse=refuse, flat=_FLAT)
def consumer_group_heartbeat(
    context: Context, request: ConsumerGroupHeartbeatRequest
) -> Slow[ConsumerGroupHeartbeatResponse] | ConsumerGroupHeartbeatResponse:
    check_enabled(context)
    context.check_allowed("Read", "Group", request.group_id)
    for name in request.subscribed_topic_names or ():
        context.check_allowed("Describe", "Topic", name)
    return _begin(context, request)


def _begin(
    context: Context, request: ConsumerGroupHeartbeatRequest
) -> Slow[ConsumerGroupHeartbeatResponse] | ConsumerGroupHeartbeatResponse:
    """Decide on a heartbeat of a client that may send it."""
    from kwire.group.consumer.requests import check_heartbeat

    check_heartbeat(request, context.config.group_consumer_assignors)
    client = Client(
        client_id=context.client_id,
        client_host=f"/{context.client_host}",
        may_describe=partial(context.is_allowed, "Describe", "Topic"),
    )
    return context.groups.consumer_heartbeat(request, client)
