"""ConsumerGroupHeartbeat (API key 68): a member of a consumer group (KIP-848) joins or stays.

A member also leaves with it, changes its subscription and reports what it owns; the response has
its assignment. As in Kafka, it is served from `group.version` 1 onwards.
"""

from functools import partial

from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kwire.errors import KafkaError
from kwire.group.decision_builder import Client
from kwire.handlers.shared.consumer_groups import check_enabled
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


def refuse(
    request: ConsumerGroupHeartbeatRequest, error: KafkaError
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=error.code, error_message=error.text, member_epoch=0, heartbeat_interval_ms=0
    )


@handles(ConsumerGroupHeartbeatRequest, refuse=refuse)
async def consumer_group_heartbeat(
    context: Context, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    check_enabled(context)
    context.check_allowed("Read", "Group", request.group_id)
    for name in request.subscribed_topic_names or ():
        context.check_allowed("Describe", "Topic", name)
    from kwire.group.consumer.requests import check_heartbeat

    check_heartbeat(request, context.config.group_consumer_assignors)
    client = Client(
        client_id=context.client_id,
        client_host=f"/{context.client_host}",
        may_describe=partial(context.is_allowed, "Describe", "Topic"),
    )
    return await context.groups.consumer_heartbeat(request, client)
