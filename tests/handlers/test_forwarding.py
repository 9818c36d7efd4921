"""Requests of brokers' listeners that only the active controller answers."""

from typing import Any

import attrs
import pytest

from kwire import errors
from kwire.codec.frame import read_response, request_frame, response_parts
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from kwire.handlers import Side
from kwire.handlers.dispatch import Context, Dispatcher, Services, handles
from kwire.handlers.forwarding import Forwarding

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


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    """This node's handler: broker 7 is known, while 8 is answered by a controller that resigns."""

    @handles(UnregisterBrokerRequest, versions="0", failed=refuse)
    async def fake(context: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        if request.broker_id == 8:
            raise errors.NotController
        return UnregisterBrokerResponse(error_code=0)

    monkeypatch.setattr("kwire.handlers.dispatch.handler_of", lambda row: fake)


async def ask(
    broker: int, *, active: bool, alone: bool = False, fails: bool = False, side: Side = Side.BROKER
) -> tuple[int, int]:
    """The error code answered, and how often another node was asked."""
    channel: Any = Channel(fails)
    controller: Any = Controller(active, alone)
    services = Services(forwarding=Forwarding(controller, channel))
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
        (8, {"active": True}, (77, 1)),  # resigned meanwhile
        (7, {"active": False, "fails": True}, (errors.RequestTimedOut.code, 1)),
        (8, {"active": False, "alone": True}, (77, 1)),
        (7, {"active": False, "alone": True}, (0, 0)),  # starts: nobody else could answer
        (8, {"active": True, "side": Side.CONTROLLER}, (errors.NotController.code, 0)),
        (8, {"active": False, "side": Side.CONTROLLER}, (errors.NotController.code, 0)),
    ],
)
async def test_who_answers(broker: int, more: dict[str, Any], expected: tuple[int, int]) -> None:
    assert await ask(broker, **more) == expected
