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
from kwire.group import usual_requests
from kwire.group.decision_builder import Client
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Flat, handles
from kwire.handlers.shared.served_groups import check_consumer_groups
from kwire.waits import Slow

_NOTHING: Final = (None, None, None, None, None)
_REFUSED: Final = {"member_epoch": 0, "heartbeat_interval_ms": 0}


def heartbeat_values(
    context: Context, group_id: str, member_id: str, epoch: int, rebalance_timeout_ms: int
) -> (
    Values
    | Slow[Values]
    | Slow[ConsumerGroupHeartbeatResponse]
    | ConsumerGroupHeartbeatResponse
    | None
):
    """Answer a heartbeat with only the member's ids and epoch, which usually changes nothing."""
    if rebalance_timeout_ms != -1 or not member_id.strip():
        return None
    check_consumer_groups(context)
    context.check_allowed("Read", "Group", group_id)
    client = context.client_id, f"/{context.client_host}"
    answer = usual_requests.consumer_heartbeat(context.groups, group_id, member_id, epoch, client)
    if answer is not None:
        return answer
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=epoch
    )
    return _begin(context, request)


_FLAT: Final = Flat(
    function=heartbeat_values,
    since=0,
    response_fields=("member_id", "member_epoch", "heartbeat_interval_ms", "throttle_time_ms"),
)


@handles(ConsumerGroupHeartbeatRequest, refused=_REFUSED, flat=_FLAT)
def consumer_group_heartbeat(
    context: Context, request: ConsumerGroupHeartbeatRequest
) -> Slow[ConsumerGroupHeartbeatResponse] | ConsumerGroupHeartbeatResponse:
    check_consumer_groups(context)
    context.check_allowed("Read", "Group", request.group_id)
    for name in request.subscribed_topic_names or ():
        context.check_allowed("Describe", "Topic", name)
    if request.topic_partitions is not None and _names_only_partitions(request):
        client = context.client_id, f"/{context.client_host}"
        answer = usual_requests.consumer_heartbeat(
            context.groups, request.group_id, request.member_id, request.member_epoch, client
        )
        if isinstance(answer, Slow):
            return Slow(partial(_response_after, answer))
        if answer is not None:
            return _response(*answer)
    return _begin(context, request)


def _names_only_partitions(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a heartbeat has nothing besides the ids, the epoch and the partitions."""
    optional = (
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        request.instance_id,
        request.rack_id,
        request.server_assignor,
    )
    return (
        optional == _NOTHING
        and request.rebalance_timeout_ms == -1
        and bool(request.member_id.strip())
    )


def _response(member_id: str, epoch: int, interval_ms: int) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=epoch, heartbeat_interval_ms=interval_ms
    )


async def _response_after(
    wait: Slow[usual_requests.Heartbeat],
) -> ConsumerGroupHeartbeatResponse:
    return _response(*(await wait.finish()))


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
