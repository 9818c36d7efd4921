"""Answers requests that only the active controller can answer, on any node (KIP-590).

If the active controller is on another node, the client's request is forwarded unparsed, in an
Envelope, until an active controller has answered it or ``request.timeout.ms`` is over. So a
failover in between only delays the client's response. Resources that this broker rejects itself are
not forwarded; the response contains their results in the right places.
"""

from contextlib import suppress

from kwire import attrs
from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.compile import Part
from kwire.codec.frame import Body, read_header, response_to, with_body
from kwire.errors import KafkaError, NotController
from kwire.handlers.shared.config_resources import add_results, resources_of
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Handler
from kwire.net.controller_channel import ControllerChannel


async def answer_by_controller(
    context: Context, frame: memoryview, request: Body, handler: Handler[Body, Body]
) -> Body | list[Part]:
    """Return the response of this node's controller, or the parts of another node's response.

    Requests on a controller's listener, or on a node without a channel, are not forwarded.
    """
    channel = context.services.channel
    if channel is None or context.listener_type is not ListenerType.BROKER:
        return await handler(context, request)
    try:
        if context.controller.is_active or context.controller.is_alone:
            with suppress(NotController):
                return await handler(attrs.evolve(context, may_forward=True), request)
        return await _forward_allowed(channel, context, frame, request, handler)
    except KafkaError as error:
        return handler.refuse(request, error)


async def _forward_allowed(
    channel: ControllerChannel,
    context: Context,
    frame: memoryview,
    request: Body,
    handler: Handler[Body, Body],
) -> Body | list[Part]:
    """Forward what this broker does not reject itself.

    Return the response as a list of parts, or as an object if results had to be added. Raises
    KafkaError if no active controller answers.
    """
    if handler.refuse_other_brokers is not None:
        order = resources_of(request)
        refusals = handler.refuse_other_brokers(context, request)
        if refusals:
            response = await _forward_rest(channel, context, frame, request, handler)
            add_results(response.responses, refusals, order)
            return response
    answer = await channel.forward(bytes(frame), context.principal, context.client_host)
    return [len(answer).to_bytes(4, "big") + answer]


async def _forward_rest(
    channel: ControllerChannel,
    context: Context,
    frame: memoryview,
    request: Body,
    handler: Handler[Body, Body],
) -> Body:
    """Forward the resources that were not rejected here and return the response."""
    if not request.resources:
        return BY_KEY[read_header(frame)[0].api_key].response(responses=[])
    try:
        answer = await channel.forward(
            with_body(frame, request), context.principal, context.client_host
        )
    except KafkaError as error:
        return handler.refuse(request, error)
    return response_to(frame, answer)
