"""The other controllers of a cluster that has only one: a request to them fails."""

from typing import Any

from kwire import errors
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.controller import Controller


class NoOtherControllers:
    """Refuse every request, because none of them exists."""

    async def send(self, request: object, requester: Any = None) -> object:
        raise errors.NotController

    async def forward(self, frame: bytes, requester: Any) -> bytes:
        raise errors.NotController


def only_controller(controller: Controller) -> ActiveController:
    """Return the way to a controller that no other one can replace."""
    return ActiveController(controller, NoOtherControllers())
