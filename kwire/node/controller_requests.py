"""A node's own requests to the active controller.

They are answered in this process while its controller is active; otherwise they are sent to the
active controller's node.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from kwire import attrs, errors
from kwire.codec.frame import Body
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.broker_registration import BrokerRegistrationRequest
from kwire.codec.messages.controller_registration import ControllerRegistrationRequest
from kwire.raftmeta.broker.lifecycle import Ask
from kwire.raftmeta.controller.brokers import (
    decide_heartbeat,
    decide_register_broker,
    decide_register_controller,
    keep_session,
)
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.state import Decision

if TYPE_CHECKING:
    from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
    from kwire.codec.messages.assign_replicas_to_dirs import (
        AssignReplicasToDirsRequest,
        AssignReplicasToDirsResponse,
    )

    Assign = Callable[[AssignReplicasToDirsRequest], Awaitable[AssignReplicasToDirsResponse]]

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1
_DECIDERS: Final[dict[type, Callable[..., Decision[Body]]]] = {
    BrokerHeartbeatRequest: decide_heartbeat,
    BrokerRegistrationRequest: decide_register_broker,
    ControllerRegistrationRequest: decide_register_controller,
}


@attrs.frozen
class InProcessController:
    """The controller in this process, as the other parts of its node use it."""

    controller: Controller
    others: Ask | None = None
    """Sends a request to an active controller on another node; None if only this node can be it."""
    alter: "Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]] | None" = None
    """Like ``others``, for ISR proposals, which have their own connection."""
    assign: "Assign | None" = None
    """Like ``others``, for the directories of replicas."""

    async def ask(self, request: Body) -> Body:
        """Return the active controller's answer, from this process while its controller is active.

        If this node is the only voter, the request waits until its controller is active, because no
        other node could answer.
        """
        controller, others = self.controller, self.others
        if others is None or controller.is_alone:
            await controller.wait_active()
        if others is None or (controller.is_active and type(request) in _DECIDERS):
            return await controller.call(_DECIDERS[type(request)], request)
        return await others(request)

    async def alter_partition(self, request: "AlterPartitionRequest") -> "AlterPartitionResponse":
        """Return the active controller's answer to an ISR proposal; raises KafkaError."""
        from kwire.raftmeta.controller.partitions import decide_alter_partition

        if self.alter is None or self.controller.is_active:
            return await self.controller.call(decide_alter_partition, request)
        return await self.alter(request)

    async def assign_directories(
        self, request: "AssignReplicasToDirsRequest"
    ) -> "AssignReplicasToDirsResponse":
        """Return the active controller's answer about replicas' directories; raises KafkaError."""
        from kwire.raftmeta.controller.partitions import decide_assign_directories

        if self.assign is None or self.controller.is_active:
            return await self.controller.call(decide_assign_directories, request)
        return await self.assign(request)

    @property
    def may_wait_for_voters(self) -> bool:
        """True if this controller is active, but other voters must acknowledge what it writes."""
        return self.controller.is_active and not self.controller.is_alone

    def keep_session(self, broker_id: int) -> bool:
        """Keep a broker's session open without heartbeats; return whether that is possible."""
        if not (self.controller.is_alone and self.controller.is_active):
            return False
        keep_session(self.controller.state, broker_id)
        return True

    async def wait_replaceable(self) -> None:
        """Wait until this controller is not active, or another node could become active."""
        await self.controller.wait_replaceable()


async def register_controller(ask: Ask, request: ControllerRegistrationRequest) -> None:
    """Register a controller with the active controller; retry until that succeeds."""
    while True:
        try:
            reply = await ask(request)
            errors.raise_for_code(reply.error_code)
            return
        except errors.KafkaError as error:
            logger.debug("controller registration waits reason=%r", error)
        await trio.sleep(RETRY_SECONDS)
