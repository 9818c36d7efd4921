"""Dispatch: errors, versions, throttling, and the table of handlers."""

import logging
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from kwire.codec.apis import APIS, BY_KEY, Api, ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.errors import KafkaError, UnknownMemberId
from kwire.handlers import SERVED, dispatch, handler_name, served_on
from kwire.handlers.dispatch import Dispatcher, Route
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.unserved import UNSERVED
from kwire.metrics import Metrics
from kwire.net.framing import Disconnect
from tests.support.handlers.services import services_of

KEY = 12


def refuse(request: HeartbeatRequest, error: KafkaError) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error.code)


@handles(HeartbeatRequest, refuse=refuse)
async def heartbeat(context: Context, request: HeartbeatRequest) -> HeartbeatResponse | None:
    """Answer, fail, hang or disconnect as the member id says."""
    match request.member_id:
        case "unknown":
            raise UnknownMemberId
        case "bug":
            raise ZeroDivisionError
        case "silent":
            return None
        case "stop":
            raise Disconnect("because")
        case "wait":
            await trio.sleep_forever()
    return HeartbeatResponse(throttle_time_ms=5)


@attrs.define
class Client:
    """A client of a dispatcher whose only API is the fake Heartbeat."""

    dispatcher: Dispatcher
    requests: Any

    async def call(self, member: str, version: int = 4, client_id: str | None = "c") -> Any:
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        frame = request_frame(KEY, version, 77, client_id, request)
        parts = await self.requests.answer(memoryview(frame)[4:])
        if parts is None:
            return None
        correlation_id, response = read_response(KEY, version, b"".join(parts)[4:])
        assert correlation_id == 77
        return response


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    dispatcher = Dispatcher(services_of(), ListenerType.BROKER)
    dispatcher._apis[KEY] = attrs.evolve(BY_KEY[KEY], first=1)
    monkeypatch.setattr("kwire.handlers.dispatch.handler_of", lambda *_: heartbeat)
    return Client(dispatcher, dispatcher.for_connection("PLAINTEXT", "10.1.2.3"))


async def test_request_is_answered(client: Client) -> None:
    assert (await client.call("m")).error_code == 0


async def test_certificate_names_the_principal_of_all_requests(client: Client) -> None:
    client.requests.identify("CN=alice,O=kwire")
    await client.call("m", client_id="other")
    assert client.requests.context.principal == ("User", "CN=alice,O=kwire")


async def test_kafka_error_becomes_an_error_response(client: Client) -> None:
    assert (await client.call("unknown")).error_code == 25


async def test_bug_is_logged_once_and_answered_with_unknown_server_error(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await client.call("bug")).error_code == -1
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert line.exc_info is not None
    assert (await client.call("m")).error_code == 0


async def test_handler_may_give_no_answer(client: Client) -> None:
    assert await client.call("silent") is None


async def test_disconnect_of_a_handler_ends_the_connection(client: Client) -> None:
    with pytest.raises(Disconnect, match="because"):
        await client.call("stop")


async def test_cancellation_is_never_caught(client: Client) -> None:
    with trio.move_on_after(0) as scope:
        await client.call("wait")
    assert scope.cancelled_caught


@pytest.mark.parametrize("version", [0, 5, -1, 99])
async def test_versions_that_are_not_served_disconnect(client: Client, version: int) -> None:
    frame = request_frame(
        KEY, 4, 1, "c", HeartbeatRequest(group_id="", generation_id=0, member_id="")
    )
    data = bytearray(frame[4:])
    data[2:4] = version.to_bytes(2, "big", signed=True)
    with pytest.raises(Disconnect, match="version"):
        await client.requests.answer(memoryview(data))


@pytest.mark.parametrize("key", [999, -1, 52, 4])
async def test_keys_that_are_not_served_disconnect(client: Client, key: int) -> None:
    frame = key.to_bytes(2, "big", signed=True) + bytes(20)
    with pytest.raises(Disconnect, match="not served"):
        await client.requests.answer(memoryview(frame))


@pytest.mark.parametrize("frame", [b"", b"\0", bytes(7), b"\0\x0c\0\x04\0\0\0\1\xff\xff"])
async def test_short_frames_disconnect(client: Client, frame: bytes) -> None:
    with pytest.raises(Disconnect):
        await client.requests.answer(memoryview(frame))


async def test_every_request_is_answered_with_its_own_client_id(client: Client) -> None:
    """In headers with and without tagged fields, where one id begins with another."""
    for client_id in ("a", "ab", "", None, "ab", "a", "\u00e9" * 200, "b" * 400):
        for version in (3, 4, 4, 3):
            assert (await client.call("m", version, client_id=client_id)) is not None
            assert client.requests.context.client_id == (client_id or "")


async def test_context_has_client_id_and_host(client: Client) -> None:
    await client.call("m", client_id="one")
    context = client.requests.context
    assert (context.client_id, context.client_host) == ("one", "10.1.2.3")
    await client.call("m", client_id="one")
    assert client.requests.context is context, "made once per client id"
    await client.call("m", client_id=None)
    assert client.requests.context.client_id == ""


async def test_throttle_time_is_returned_and_mutes_the_connection(client: Client) -> None:
    """invariant 104: the client gets the throttle time, and its connection is muted."""
    assert (await client.call("m")).throttle_time_ms == 5
    assert client.requests.muted_s == 0.005


async def test_old_shapes_are_widened_and_new_ones_narrowed(client: Client) -> None:
    def widen(request: HeartbeatRequest, version: int) -> HeartbeatRequest:
        request.member_id = "unknown" if version == 3 else request.member_id
        return request

    def narrow(
        response: HeartbeatResponse, version: int, request: HeartbeatRequest
    ) -> HeartbeatResponse:
        assert request.member_id == "unknown"
        response.error_code += version
        return response

    route = client.dispatcher.route(KEY, 3)
    client.dispatcher.routes[KEY, 3] = attrs.evolve(route, widen=widen, narrow=narrow)
    assert (await client.call("m", version=3)).error_code == 28


async def test_requests_are_counted(client: Client) -> None:
    for member in ("m", "unknown", "bug"):
        await client.call(member)
    text = client.dispatcher.services.metrics.text()
    assert 'requests_total{request="Heartbeat",version="4"} 3' in text
    assert 'totaltime_seconds_count{request="Heartbeat"} 3' in text


# --- the table ---------------------------------------------------------------------------------


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_first_request_of_an_api_is_prepared_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other tasks run between the import of messages and handler and each compilation."""
    dispatcher, steps = Dispatcher(services_of(), ListenerType.BROKER), Steps()
    calls: list[tuple[str, int]] = []
    for name in ("handler_of", "decoder", "encoder"):
        function = getattr(dispatch, name)

        def note_call(*args: Any, name: str = name, function: Any = function) -> Any:
            calls.append((name, steps.count))
            return function(*args)

        monkeypatch.setattr(dispatch, name, note_call)
    trio.lowlevel.add_instrument(steps)
    route = await dispatcher.prepare(19, 7)
    trio.lowlevel.remove_instrument(steps)
    assert [name for name, _ in calls[:3]] == ["handler_of", "decoder", "encoder"]
    assert len({step for _, step in calls[:3]}) == 3
    assert calls[0][1] > 0, "the messages have a turn of their own"
    calls.clear()
    assert dispatcher.route(19, 7) is route
    assert not calls


def test_every_api_that_is_not_served_has_a_reason() -> None:
    assert set(UNSERVED) <= set(BY_KEY)
    assert all(UNSERVED.values())
    unasked = {api.name for api in SERVED if api.advertised is None}
    assert unasked == {"GetTelemetrySubscriptions", "PushTelemetry"}


SERVED_ON = [
    (api, listener_type)
    for listener_type in ListenerType
    for api in served_on(listener_type, has_telemetry=True).values()
]


@pytest.mark.parametrize(
    ("api", "listener_type"), SERVED_ON, ids=[f"{api.name}-{kind.name}" for api, kind in SERVED_ON]
)
def test_every_served_version_has_a_route(api: Api, listener_type: ListenerType) -> None:
    for version in range(api.first, api.stable + 1):
        route = Route.build(api, listener_type, version, Metrics())
        assert route.handler.request_type is api.request


def test_every_handler_module_is_served() -> None:
    """Each module of the package but three is a handler that a listener serves."""
    modules = {path.stem for path in Path(dispatch.__file__).parent.glob("*.py")}
    names = {handler_name(api, listener_type) for api, listener_type in SERVED_ON}
    assert modules - names == {"__init__", "dispatch", "unserved"}


def test_apis_are_unique() -> None:
    assert len({api.key for api in APIS}) == len(APIS)
