"""Envelope: the controller's own handlers answer the request inside."""

import ipaddress
from typing import Any

import attrs
import pytest

from kwire import errors
from kwire.codec.apis import ListenerType
from kwire.codec.compile import encode
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.codec.messages.principal import DefaultPrincipal
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from kwire.handlers.envelope import envelope
from kwire.handlers.shared.context import Context, Principal
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.security.authorizer import AclIndex, Authorizer
from tests.support.handlers.services import services_of

KEY = 64
PRINCIPAL = b"\0\0" + encode(
    DefaultPrincipal(type="User", name="alice", token_authenticated=False), 0
)


@attrs.define
class RaftService:
    active: bool = True

    def leader(self) -> LeaderAndEpoch:
        return LeaderAndEpoch(1, 1, self.active)


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[Context]:
    """Replace the handler; return the list of contexts in which it is called."""
    contexts: list[Context] = []

    @handles(
        UnregisterBrokerRequest,
        refuse=lambda request, error: UnregisterBrokerResponse(error_code=error.code),
    )
    async def fake(context: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        contexts.append(context)
        return UnregisterBrokerResponse(error_code=request.broker_id)

    monkeypatch.setattr("kwire.handlers.dispatch.handler_of", lambda *_: fake)
    return contexts


def inside(version: int = 0, key: int = KEY) -> bytes:
    data = request_frame(KEY, 0, 99, "alices-client", UnregisterBrokerRequest(broker_id=7))[4:]
    return key.to_bytes(2, "big") + version.to_bytes(2, "big") + data[4:]


async def ask(
    data: bytes,
    *,
    active: bool = True,
    principal: bytes = PRINCIPAL,
    host: str = "10.1.2.3",
    authorizer: Authorizer | None = None,
) -> EnvelopeResponse:
    services = services_of(quorum=RaftService(active), authorizer=authorizer)
    context = Context(
        services=services, listener_type=ListenerType.CONTROLLER, listener="CONTROLLER"
    )
    answer: Any = await envelope(
        context,
        EnvelopeRequest(
            request_data=data,
            request_principal=principal,
            client_host_address=ipaddress.ip_address(host).packed if host else b"",
        ),
    )
    assert isinstance(answer, EnvelopeResponse)
    return answer


async def test_request_inside_is_answered_for_the_client(contexts: list[Context]) -> None:
    answer = await ask(inside())
    assert answer.error_code == 0
    assert answer.response_data is not None
    correlation_id, response = read_response(KEY, 0, answer.response_data)
    assert (correlation_id, response.error_code) == (99, 7)
    (context,) = contexts
    assert context.principal == Principal("User", "alice")
    assert (context.client_id, context.client_host) == ("alices-client", "10.1.2.3")
    assert (context.listener_type, context.listener) == (ListenerType.CONTROLLER, "CONTROLLER")


async def test_only_nodes_may_send_envelopes(contexts: list[Context]) -> None:
    """The broker needs the permission ClusterAction; a super user inside does not help."""
    authorizer = Authorizer(frozenset({("User", "alice")}), False)
    authorizer.replace_index(AclIndex())
    answer = await ask(inside(), authorizer=authorizer)
    assert (answer.error_code, contexts) == (errors.ClusterAuthorizationFailed.code, [])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"active": False}, 41),  # the broker looks for the new controller
        ({"principal": b""}, 97),
        ({"principal": b"\0\x09" + PRINCIPAL[2:]}, 97),  # a version that does not exist
        ({"host": ""}, 42),
    ],
)
async def test_envelope_is_refused_with_kafkas_code(
    contexts: list[Context], change: dict[str, Any], code: int
) -> None:
    assert (await ask(inside(), **change)).error_code == code
    assert not contexts


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (inside(key=12), 42),  # brokers answer Heartbeat themselves
        (inside(key=58), 42),  # an envelope in an envelope
        (inside(key=999), 35),
        (inside(version=9), 35),
        (inside()[:11], 35),
        (inside()[:-1], 35),
        (b"", 35),
    ],
)
async def test_request_that_brokers_do_not_forward_is_refused(
    contexts: list[Context], data: bytes, code: int
) -> None:
    """Kafka's codes: at 35 a broker closes the connection, and the client requests ApiVersions."""
    assert (await ask(data)).error_code == code
    assert not contexts
