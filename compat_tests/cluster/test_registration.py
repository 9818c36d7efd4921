"""Registrations of brokers with an id that another broker has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compat_tests.cluster.nodes import Cluster
from compat_tests.harness.broker import kafka
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.testing.wire import WireClient

ID, DUPLICATE_BROKER_REGISTRATION = 77, 101


@pytest.fixture
def controller(make: Callable[..., Cluster]) -> Iterator[WireClient]:
    cluster = make(1, broker_session_timeout_ms="60000")  # No session ends during a test.
    cluster.start()
    with WireClient("127.0.0.1", cluster.nodes[1].controller_port) as client:
        yield client


def register(controller: WireClient, life: bytes, directory: bytes) -> BrokerRegistrationResponse:
    listener = BrokerRegistrationRequest.Listener
    feature = BrokerRegistrationRequest.Feature
    request = BrokerRegistrationRequest(
        broker_id=ID,
        cluster_id=kafka.CLUSTER_ID,
        incarnation_id=life * 16,
        listeners=[listener(name="PLAINTEXT", host="localhost", port=1, security_protocol=0)],
        features=[
            feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED.items()
        ],
        rack=None,
        log_dirs=[directory * 16],
    )
    answer: BrokerRegistrationResponse = controller.call(request, 4)
    return answer


def beat(controller: WireClient, epoch: int) -> int:
    request = BrokerHeartbeatRequest(
        broker_id=ID,
        broker_epoch=epoch,
        current_metadata_offset=0,
        want_fence=True,
        want_shut_down=False,
    )
    code: int = controller.call(request, 1).error_code
    return code


def test_second_incarnation_of_a_fenced_broker_is_refused(controller: WireClient) -> None:
    """A second incarnation with the id of a starting, still fenced broker is refused."""
    first = register(controller, b"a", b"x")
    assert first.error_code == 0
    assert beat(controller, first.broker_epoch) == 0
    assert register(controller, b"b", b"y").error_code == DUPLICATE_BROKER_REGISTRATION
    assert beat(controller, first.broker_epoch) == 0


def test_the_same_incarnation_again(controller: WireClient) -> None:
    """An incarnation that registers again keeps its epoch."""
    first = register(controller, b"a", b"x")
    again = register(controller, b"a", b"x")
    assert (again.error_code, again.broker_epoch) == (0, first.broker_epoch)
