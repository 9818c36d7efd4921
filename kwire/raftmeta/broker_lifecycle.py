"""A broker's life towards the controller: register, be unfenced, send heartbeats, leave.

In a combined node the controller is asked by a plain call and the broker lives as long as its
controller, so nothing is sent while idle; otherwise ``ask`` goes over the network to whoever is
the active controller, and a heartbeat is due every ``broker.heartbeat.interval.ms``.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from kwire import errors
from kwire.clock import Clock
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.codec.messages.controller_registration import ControllerRegistrationRequest
from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import PROTOCOLS, Endpoint
from kwire.errors import BY_CODE, NONE
from kwire.raftmeta.controller_brokers import (
    decide_heartbeat,
    decide_register_broker,
    decide_register_controller,
    keep_session,
)
from kwire.raftmeta.controller_service import Controller
from kwire.raftmeta.publisher import MetadataPublisher

logger = logging.getLogger(__name__)

Ask = Callable[[Any], Awaitable[Any]]
"""Sends a request to the active controller; raises KafkaError."""

RETRY_SECONDS: Final = 0.1
GIVE_UP_SECONDS: Final = 4.0
"""Longer than an election takes: a cluster that stops as a whole has no controller at the end."""
_TRANSIENT: Final = (
    errors.NotController,
    errors.RequestTimedOut,
    errors.DuplicateBrokerRegistration,
)


def directly(controller: Controller, others: Ask | None = None) -> Ask:
    """Asks the controller in this process while it is active, else by ``others``.

    The only voter is waited for: nobody else could answer.
    """
    deciders: dict[type, Any] = {
        BrokerHeartbeatRequest: decide_heartbeat,
        BrokerRegistrationRequest: decide_register_broker,
        ControllerRegistrationRequest: decide_register_controller,
    }

    async def ask(request: Any) -> Any:
        if others is None or controller.is_alone:
            await controller.wait_active()
        if others is None or (controller.is_active and type(request) in deciders):
            return await controller.call(deciders[type(request)], request)
        return await others(request)

    return ask


def listeners_of(made: Any, endpoints: Sequence[Endpoint]) -> list[Any]:
    """Endpoints as a registration request has them."""
    return [
        made(name=e.name, host=e.host, port=e.port, security_protocol=PROTOCOLS[e.protocol])
        for e in endpoints
    ]


def features_of(made: Any, features: Mapping[str, tuple[int, int]]) -> list[Any]:
    """Supported features as a registration request has them."""
    return [
        made(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in sorted(features.items())
    ]


def controller_registration(
    config: BrokerConfig,
    incarnation_id: bytes,
    endpoints: Sequence[Endpoint],
    features: Mapping[str, tuple[int, int]],
) -> ControllerRegistrationRequest:
    """What a controller tells about itself; ``endpoints`` as they are really bound."""
    request = ControllerRegistrationRequest
    return request(
        controller_id=config.node_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        listeners=listeners_of(request.Listener, endpoints),
        features=features_of(request.Feature, features),
    )


async def register_controller(ask: Ask, request: ControllerRegistrationRequest) -> None:
    """Make a controller known to the active one, whenever there is one."""
    while True:
        try:
            reply = await ask(request)
            raise_for(reply.error_code)
            return
        except errors.KafkaError as error:
            logger.debug("controller registration waits reason=%r", error)
        await trio.sleep(RETRY_SECONDS)


@attrs.define(kw_only=True)
class BrokerLifecycle:
    """One incarnation of this node's broker."""

    config: BrokerConfig
    cluster_id: str
    incarnation_id: bytes
    endpoints: Sequence[Endpoint]
    """The advertised ones, with the ports that were really bound."""
    features: Mapping[str, tuple[int, int]]
    log_dirs: Sequence[bytes]
    publisher: MetadataPublisher
    ask: Ask
    clock: Clock
    local: Controller | None = None
    """The controller in this very process, if there is one."""
    previous_epoch: int = -1
    """Of the incarnation that last stopped in order."""
    epoch: int = -1
    offline_dirs: list[bytes] = attrs.field(factory=list)
    _stopping: bool = False
    _trouble: str = ""
    """What was logged last of why the controller is not heard: said once."""

    async def start(self) -> None:
        """Register and be unfenced; after that, clients are served."""
        await self._register()
        while True:
            reply = await self._heard(want_fence=False)
            if reply is not None and not reply.is_fenced:
                break
            await trio.sleep(RETRY_SECONDS)
        self._keep()
        logger.info("broker unfenced id=%d epoch=%d", self.config.node_id, self.epoch)

    async def _register(self) -> None:
        """Until the controller takes it; a twin's session has to run out first."""
        request = BrokerRegistrationRequest
        asked = request(
            broker_id=self.config.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=self.incarnation_id,
            listeners=listeners_of(request.Listener, self.endpoints),
            features=features_of(request.Feature, self.features),
            rack=self.config.broker_rack,
            log_dirs=list(self.log_dirs),
            previous_broker_epoch=self.previous_epoch,
        )
        with trio.fail_after(self.config.initial_broker_registration_timeout_ms / 1000):
            while True:
                try:
                    reply: BrokerRegistrationResponse = await self.ask(asked)
                    raise_for(reply.error_code)
                    self.epoch = reply.broker_epoch
                    return
                except _TRANSIENT as error:
                    if repr(error) != self._trouble:
                        logger.info("broker registration waits reason=%r", error)
                    self._trouble = repr(error)
                await trio.sleep(RETRY_SECONDS)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send heartbeats until cancelled; a lone combined node needs none."""
        task_status.started()
        interval = self.config.broker_heartbeat_interval_ms / 1000
        while not self._stopping:
            if self.local is not None and self._keep():
                await self.local.wait_inactive()
            reply = await self._heard(want_fence=False)
            await trio.sleep(interval if reply is not None else RETRY_SECONDS)

    def _keep(self) -> bool:
        """Live as long as the controller in this process, if that is the only one."""
        alone = self.local is not None and self.local.is_alone and self.local.is_active
        if alone and self.local is not None:
            keep_session(self.local.state, self.config.node_id)
        return alone

    async def stop(self) -> None:
        """Hand leaderships over, then be fenced: controlled shutdown."""
        self._stopping = True
        answered_at = self.clock.now()
        while self.clock.now() < answered_at + GIVE_UP_SECONDS:
            reply = None
            with trio.move_on_at(answered_at + GIVE_UP_SECONDS):
                reply = await self._heard(want_fence=False, want_shut_down=True)
            if reply is not None:
                if reply.should_shut_down:
                    return
                answered_at = self.clock.now()
            await trio.sleep(RETRY_SECONDS)
        logger.warning("stops without a controller id=%d", self.config.node_id)

    async def _heard(
        self, *, want_fence: bool, want_shut_down: bool = False
    ) -> BrokerHeartbeatResponse | None:
        """A heartbeat; None if no active controller took it.

        A broker that the controller does not know any more registers again.
        """
        try:
            return await self._heartbeat(want_fence=want_fence, want_shut_down=want_shut_down)
        except errors.StaleBrokerEpoch:
            if want_shut_down:
                raise
            await self._register()
        except errors.KafkaError as error:
            if repr(error) != self._trouble:
                logger.info("heartbeat not taken reason=%r", error)
            self._trouble = repr(error)
        return None

    async def _heartbeat(
        self, *, want_fence: bool, want_shut_down: bool = False
    ) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self.config.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self.publisher.applied.applied.offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            offline_log_dirs=self.offline_dirs,
            cordoned_log_dirs=[],
        )
        reply: BrokerHeartbeatResponse = await self.ask(request)
        raise_for(reply.error_code)
        return reply


def raise_for(code: int) -> None:
    """Raise what an error code stands for."""
    if code != NONE:
        raise BY_CODE.get(code, errors.UnknownServerError)
