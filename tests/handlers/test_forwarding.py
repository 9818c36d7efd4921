"""Requests of brokers' listeners that only the active controller answers."""

from typing import Any

import attrs
import pytest

from kwire import errors
from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.frame import (
    read_header,
    read_request,
    read_response,
    request_frame,
    response_parts,
)
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Context, Services
from kwire.handlers.shared.handler import handles
from tests.support.raftmeta.clusters import node_config

KEY = 64


@attrs.define
class Controller:
    is_active: bool
    is_alone: bool = False


@attrs.define
class Channel:
    """Another node's controller; answers with error 77."""

    fails: bool = False
    frames: list[bytes] = attrs.field(factory=list)

    async def forward(self, frame: bytes, principal: tuple[str, str], host: str) -> bytes:
        self.frames.append(frame)
        if self.fails:
            raise errors.RequestTimedOut
        answer = UnregisterBrokerResponse(error_code=77)
        return b"".join(response_parts(KEY, 0, 99, answer))[4:]


def refuse(request: UnregisterBrokerRequest, error: errors.KafkaError) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error.code)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """This node's handler: broker 7 is known, while 8 is answered by a controller that resigns."""

    @handles(UnregisterBrokerRequest, refuse=refuse)
    async def fake(context: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        if request.broker_id == 8:
            raise errors.NotController
        return UnregisterBrokerResponse(error_code=0)

    monkeypatch.setattr("kwire.handlers.dispatch.handler_of", lambda *_: fake)


async def ask(
    broker: int,
    *,
    active: bool,
    alone: bool = False,
    fails: bool = False,
    side: ListenerType = ListenerType.BROKER,
) -> tuple[int, int]:
    """The error code answered, and how often another node was asked."""
    channel: Any = Channel(fails)
    controller: Any = Controller(active, alone)
    services = Services(controller=controller, channel=channel)
    frame = request_frame(KEY, 0, 99, "c", UnregisterBrokerRequest(broker_id=broker))[4:]
    session = Dispatcher(services, side).session("PLAINTEXT", "127.0.0.1")
    parts = await session.answer(memoryview(frame))
    assert parts is not None
    correlation_id, response = read_response(KEY, 0, b"".join(parts)[4:])
    assert correlation_id == 99
    assert all(sent == frame for sent in channel.frames), "passed on as it came"
    return response.error_code, len(channel.frames)


@pytest.mark.parametrize(
    ("broker", "more", "expected"),
    [
        (7, {"active": True}, (0, 0)),
        (7, {"active": False}, (77, 1)),
        (8, {"active": True}, (77, 1)),  # resigned in between
        (7, {"active": False, "fails": True}, (errors.RequestTimedOut.code, 1)),
        (8, {"active": False, "alone": True}, (77, 1)),
        (7, {"active": False, "alone": True}, (0, 0)),  # starts: no other node could answer
        (8, {"active": True, "side": ListenerType.CONTROLLER}, (errors.NotController.code, 0)),
        (8, {"active": False, "side": ListenerType.CONTROLLER}, (errors.NotController.code, 0)),
    ],
)
@pytest.mark.usefixtures("local")
async def test_who_answers(broker: int, more: dict[str, Any], expected: tuple[int, int]) -> None:
    assert await ask(broker, **more) == expected


@attrs.define
class Settings:
    """Another node's controller that takes every change of settings; or does not answer."""

    key: int
    silent: bool = False
    named: list[str] = attrs.field(factory=list)

    async def forward(self, frame: bytes, principal: tuple[str, str], host: str) -> bytes:
        if self.silent:
            raise errors.RequestTimedOut
        head, body = read_header(frame)
        request = read_request(head, frame, body)
        self.named = [one.resource_name for one in request.resources]
        response = BY_KEY[self.key].response
        result = response.AlterConfigsResourceResponse
        results = [
            result(
                error_code=0,
                error_message=None,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one in reversed(request.resources)
        ]
        answer = response(responses=results)
        return b"".join(response_parts(self.key, 1, head.correlation_id, answer))[4:]


OTHER = "Unexpected broker id, expected 1, but received 2"
NO_NUMBER = "Node id must be an integer, but it is: x"


@pytest.mark.parametrize("key", [33, 44])
@pytest.mark.parametrize(
    ("silent", "asked", "passed_on", "expected"),
    [
        (False, ["1", "", "t"], ["1", "", "t"], {}),
        (False, ["t", "2", "1", "x"], ["t", "1"], {"2": (42, OTHER), "x": (42, NO_NUMBER)}),
        (False, ["2"], [], {"2": (42, OTHER)}),
        (True, ["2", "t"], [], {"2": (42, OTHER), "t": (7, None)}),
    ],
)
async def test_settings_of_other_brokers_are_refused_before_anything_is_passed_on(
    key: int,
    silent: bool,
    asked: list[str],
    passed_on: list[str],
    expected: dict[str, tuple[int, str]],
) -> None:
    """Each broker judges its own; the others' resources go on, and the answer keeps the order."""
    api = BY_KEY[key].request
    resources = [
        api.AlterConfigsResource(
            resource_type=2 if name == "t" else 4, resource_name=name, configs=[]
        )
        for name in asked
    ]
    channel: Any = Settings(key, silent)
    controller: Any = Controller(is_active=False)
    services = Services(config=node_config(), controller=controller, channel=channel)
    frame = request_frame(key, 1, 99, "c", api(resources=resources, validate_only=False))[4:]
    session = Dispatcher(services, ListenerType.BROKER).session("PLAINTEXT", "127.0.0.1")
    parts = await session.answer(memoryview(frame))
    assert parts is not None
    correlation_id, response = read_response(key, 1, b"".join(parts)[4:])
    assert correlation_id == 99
    assert channel.named == passed_on
    found = {one.resource_name: (one.error_code, one.error_message) for one in response.responses}
    if expected:
        assert list(found) == asked
    assert {name: told for name, told in found.items() if told != (0, None)} == expected


class Debt(Channel):
    """A controller that throttles the client."""

    async def forward(self, frame: bytes, principal: tuple[str, str], host: str) -> bytes:
        head, _ = read_header(frame)
        answer = BY_KEY[head.api_key].response(throttle_time_ms=2_500)
        return b"".join(response_parts(head.api_key, head.api_version, 99, answer))[4:]


@pytest.mark.parametrize(
    ("request_", "key", "version"),
    [
        (CreateTopicsRequest(), 19, 2),
        (CreateTopicsRequest(), 19, 7),
        (DeleteTopicsRequest(timeout_ms=1), 20, 1),
        (CreatePartitionsRequest(timeout_ms=1, validate_only=False), 37, 0),
    ],
)
async def test_client_of_a_controller_elsewhere_is_muted_for_as_long_as_it_has_to_wait(
    request_: Any, key: int, version: int
) -> None:
    """Invariant 104: as Kafka's broker does, whatever the version; old clients would not wait."""
    channel: Any = Debt()
    controller: Any = Controller(is_active=False)
    services = Services(controller=controller, channel=channel)
    session = Dispatcher(services, ListenerType.BROKER).session("PLAINTEXT", "127.0.0.1")
    frame = request_frame(key, version, 99, "c", request_)[4:]
    parts = await session.answer(memoryview(frame))
    assert parts is not None
    assert session.muted_s == 2.5


async def test_answer_without_a_throttle_time_mutes_nobody(local: None) -> None:
    channel: Any = Channel()
    controller: Any = Controller(is_active=False)
    services = Services(controller=controller, channel=channel)
    session = Dispatcher(services, ListenerType.BROKER).session("PLAINTEXT", "127.0.0.1")
    frame = request_frame(KEY, 0, 99, "c", UnregisterBrokerRequest(broker_id=7))[4:]
    await session.answer(memoryview(frame))
    assert session.muted_s == 0
