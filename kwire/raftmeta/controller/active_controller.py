"""The only way to reach the active controller, in this process or on another node.

While this node's controller is active, it decides in this process. Otherwise, and if it raises
NotController meanwhile, the request is sent to the node whose controller is active: as this node's
own request, or in an Envelope on behalf of a client (KIP-590). If this node is the only voter, a
request waits until its controller is active, because no other node could answer.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar, cast

import attrs

from kwire import errors
from kwire.raftmeta.controller.controller import Controller, Decide
from kwire.raftmeta.controller.mutation_quota import Requester

Q = TypeVar("Q")
R = TypeVar("R")
Here = TypeVar("Here")
Elsewhere = TypeVar("Elsewhere")


class OtherControllers(Protocol):
    """Reaches the active controller on another node, through failovers; raises KafkaError."""

    def send(self, request: object, requester: Requester | None = None, /) -> Awaitable[object]:
        """Return the response to a request, sent on behalf of ``requester`` if given."""

    def forward(self, frame: bytes, requester: Requester, /) -> Awaitable[bytes]:
        """Return the response's frame to a client's frame."""


@attrs.frozen(eq=False, repr=False)
class ActiveController:
    """The active controller, whichever node that is."""

    local: Controller
    others: OtherControllers

    async def call(
        self,
        decide: "Decide[Q, R]",
        request: Q,
        requester: Requester | None = None,
        *,
        in_force: bool = False,
    ) -> R:
        """Return the active controller's reply to a request, for ``requester`` if given.

        ``in_force`` is that of :meth:`Controller.call`; another node does not wait for this one.
        """
        here = partial(self.local.call, decide, request, in_force=in_force)
        elsewhere = partial(self.others.send, request, requester)
        reply = await self.run(here, elsewhere)
        return cast("R", reply)  # The other node runs the same decider.

    async def run(
        self,
        here: Callable[[], Awaitable[Here]],
        elsewhere: Callable[[], Awaitable[Elsewhere]],
    ) -> Here | Elsewhere:
        """Return the result of ``here`` on the active controller's node, else of ``elsewhere``."""
        local = self.local
        while not local.is_active and local.is_alone:
            await local.wait_change()
        if local.is_active:
            with suppress(errors.NotController):
                return await here()
        return await elsewhere()
