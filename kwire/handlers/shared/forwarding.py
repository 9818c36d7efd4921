"""Answers the requests that only the active controller can answer, on any node (KIP-590).

If it is on another node, the client's request is sent unopened, in an Envelope, until an active
controller has answered it or ``request.timeout.ms`` is over: for the client a failover in between
is only a delay. Resources that this broker refuses itself are not forwarded; their results are in
the answer in their places.
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
    """Return the answer of this node's controller, or another node's as a list of parts.

    Requests of a controller's listener, and of a node without a channel, are not forwarded.
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
    """Forward what this broker does not refuse itself.

    Return the answer as a list of parts, or as a response if results had to be added. Raises
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
    """Forward the resources that were not refused here and return the response to them."""
    if not request.resources:
        return BY_KEY[read_header(frame)[0].api_key].response(responses=[])
    try:
        answer = await channel.forward(
            with_body(frame, request), context.principal, context.client_host
        )
    except KafkaError as error:
        return handler.refuse(request, error)
    return response_to(frame, answer)
