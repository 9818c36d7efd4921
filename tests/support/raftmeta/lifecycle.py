"""A broker's lifecycle, and controllers whose answers a test writes."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from kwire.clock import SystemClock
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from tests.support.raftmeta.clusters import CLUSTER, ENDPOINTS, node_config


def heartbeat_response(*, fenced: bool = False, caught_up: bool = True) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=False)


def registration_response(epoch: int = 7) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(broker_epoch=epoch)


class Controllers:
    """Controllers that give these answers in order, and after the last one none."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[float, Any]] = []

    async def ask(self, request: Any) -> Any:
        self.requests.append((trio.current_time(), request))
        if not self.answers:
            await trio.sleep_forever()
        return self.answers.pop(0)

    @property
    def letters(self) -> list[str]:
        """A letter for each request: registration, Fenced, Unfenced, Leaving."""
        return [letter(request) for _, request in self.requests]


def letter(request: Any) -> str:
    """Return a letter for a request: registration, Fenced, Unfenced, Leaving."""
    if isinstance(request, BrokerRegistrationRequest):
        return "R"
    assert isinstance(request, BrokerHeartbeatRequest)
    return "L" if request.want_shut_down else "F" if request.want_fence else "U"


async def no() -> bool:
    return False


async def yes() -> bool:
    return True


def make_lifecycle(
    controllers: Controllers,
    is_gone: Callable[[], Awaitable[bool]] = no,
    publisher: MetadataPublisher | None = None,
) -> BrokerLifecycle:
    """Return the lifecycle of a broker that asks these controllers."""
    return BrokerLifecycle(
        config=node_config(),
        cluster_id=CLUSTER,
        incarnation_id=b"i" * 16,
        endpoints=ENDPOINTS,
        features={},
        log_dirs=[b"a" * 16, b"\xff" * 16],
        publisher=publisher or MetadataPublisher(),
        ask=controllers.ask,
        clock=SystemClock(),
        is_gone=is_gone,
        has_no_active=is_gone,
    )


UP = (registration_response(), heartbeat_response(fenced=True), heartbeat_response())
"""Answers of the controller to a broker that it unfences without delay."""
