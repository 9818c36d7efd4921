"""Answers, on any node, requests that only the active controller can answer (KIP-590).

If the active controller is on another node, the client's frame is forwarded unchanged until an
active controller has answered it or ``request.timeout.ms`` is over. So a failover in between only
delays the client's response.

The whole handler runs on the active controller's node, not only its decision. Mutation quotas
(KIP-599), authorization with the newest metadata, and the quorum's own responses are available only
there, and they need the version, client id and unknown fields that the client sent, which a decoded
request no longer has. The exception is a handler that rejects parts of a request on the client's
broker: it runs here, and calls the active controller for the rest.
"""

from functools import partial

import attrs

from kwire.codec.apis import ListenerType
from kwire.codec.compile import Part
from kwire.codec.frame import Body
from kwire.errors import KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Handler


async def answer_by_controller(
    context: Context, frame: memoryview, request: Body, handler: Handler[Body, Body]
) -> Body | list[Part]:
    """Return the response of this node's controller, or the parts of another node's response.

    Requests on a controller's listener are not forwarded.
    """
    if context.listener_type is not ListenerType.BROKER:
        return await handler(context, request)
    active = context.services.active_controller

    async def forward() -> list[Part]:
        answer = await active.others.forward(bytes(frame), context.requester)
        return [len(answer).to_bytes(4, "big") + answer]

    here = partial(handler, attrs.evolve(context, may_forward=True), request)
    try:
        return await active.run(here, forward)
    except KafkaError as error:
        return handler.refuse(request, error)
