"""Forwards the requests that only the active controller can answer (KIP-590).

The client's request is sent unopened, in an Envelope, until an active controller has answered it or
``request.timeout.ms`` is over: for the client a failover in between is only a delay. Resources that
this broker refuses itself are not forwarded; their results are in the answer in their places.
"""

from typing import TYPE_CHECKING, Any

from kwire.codec.apis import BY_KEY
from kwire.codec.frame import read_header, response_to, with_body
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, Handler
from kwire.net.controller_channel import ControllerChannel
from kwire.raftmeta.controller.service import Controller

if TYPE_CHECKING:
    from kwire.codec.compile import Part


class Forwarding:
    """The forwarding of admin requests from this node's listeners."""

    def __init__(self, controller: Controller, channel: ControllerChannel) -> None:
        self._controller = controller
        self._channel = channel

    @property
    def is_needed(self) -> bool:
        """Whether the active controller is another node, or unknown."""
        return not self._controller.is_active and not self._controller.is_alone

    async def pass_on(
        self,
        context: Context,
        frame: memoryview,
        request: Any,
        serve: Handler[Any, Any],
    ) -> "list[Part] | Any":
        """Forward a request; return the answer as parts, or as a response with results added.

        Raises KafkaError if no active controller answers.
        """
        if serve.refused is not None:
            asked = [(one.resource_type, one.resource_name) for one in request.resources]
            results = serve.refused(context, request)
            if results:
                response = await self._rest(context, frame, request, serve)
                response.responses += results
                response.responses.sort(
                    key=lambda one: asked.index((one.resource_type, one.resource_name))
                )
                return response
        answer = await self._forward(context, bytes(frame))
        return [len(answer).to_bytes(4, "big") + answer]

    async def _rest(
        self, context: Context, frame: memoryview, request: Any, serve: Handler[Any, Any]
    ) -> Any:
        """Forward the resources that were not refused here and return the answer."""
        if not request.resources:
            return BY_KEY[read_header(frame)[0].api_key].response(responses=[])
        try:
            return response_to(frame, await self._forward(context, with_body(frame, request)))
        except KafkaError as error:
            return serve.failed(request, error)

    async def _forward(self, context: Context, frame: bytes) -> bytes:
        return await self._channel.forward(frame, context.principal, context.client_host)
