"""Passes on what only the active controller can answer (KIP-590).

The client's request goes on unopened, in an Envelope, until an active controller has answered it or
``request.timeout.ms`` is over: a failover in between is the client's business only as a delay.
"""

from typing import TYPE_CHECKING

from kwire.handlers.dispatch import Context
from kwire.net.controller_channel import ControllerChannel
from kwire.raftmeta.controller_service import Controller

if TYPE_CHECKING:
    from kwire.codec.compile import Part


class Forwarding:
    """The way that admin requests take from this node's listeners."""

    def __init__(self, controller: Controller, channel: ControllerChannel) -> None:
        self._controller = controller
        self._channel = channel

    @property
    def is_needed(self) -> bool:
        """Whether the active controller is another node, or unknown."""
        return not self._controller.is_active and not self._controller.is_alone

    async def pass_on(self, context: Context, frame: memoryview) -> "list[Part]":
        """The active controller's answer, ready to be sent; KafkaError if there is none."""
        answer = await self._channel.forward(bytes(frame), context.principal, context.client_host)
        return [len(answer).to_bytes(4, "big") + answer]
