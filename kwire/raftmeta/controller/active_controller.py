"""The active controller, called the same way whether it is local or on another node."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from kwire import attrs, errors
from kwire.raftmeta.controller.controller import Controller, Decide
from kwire.raftmeta.controller.mutation_quota import Requester

Q = TypeVar("Q")
R = TypeVar("R")


@attrs.define(eq=False)
class ActiveController:
    """Runs a decision on the active controller, whichever node that is."""

    local: Controller
    remote: Callable[[object], Awaitable[object]] | None = None
    """Sends a request in this node's name; None if no other node can be the active controller."""
    remote_for: Callable[[object, Requester], Awaitable[object]] | None = None
    """Sends a request on behalf of a client."""

    @property
    def may_be_remote(self) -> bool:
        """True if another node can be the active controller."""
        return self.remote is not None

    async def call(
        self, decide: "Decide[Q, R]", request: Q, requester: Requester | None = None
    ) -> R:
        """Return the active controller's reply to a request, sent for a client if one is named."""
        if self.remote is None or self.local.is_active:
            try:
                return await self.local.call(decide, request)
            except errors.NotController:
                if self.remote is None:
                    raise
        if requester is not None and self.remote_for is not None:
            reply = await self.remote_for(request, requester)
        else:
            reply = await self.remote(request)
        return cast(R, reply)  # The other node runs the same decider.
