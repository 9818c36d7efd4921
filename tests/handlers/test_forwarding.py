"""Requests of brokers' listeners that only the active controller answers."""

from typing import Any

import attrs
import pytest

from kwire import errors
from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.frame import read_header, read_response, request_frame, response_parts
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from kwire.codec.schema import spec_of
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.mutation_quota import Requester
from tests.support.handlers.services import services_of
from tests.support.raftmeta.clusters import node_config
from tests.support.raftmeta.no_others import NoOtherControllers

KEY = 64
CLIENT = Requester(("User", "ANONYMOUS"), "c", "10.1.2.3")


@attrs.define
class Controller:
    """This node's controller, which is the active one after the first wait if it is alone."""

    is_active: bool
    is_alone: bool = False
    waits: int = 0

    async def wait_change(self) -> None:
        self.waits += 1
        self.is_active = True

    async def call(self, decide: Any, request: Any, *, in_force: bool = False) -> Any:
        """Accept a change of settings, but leave that of broker 1 to the next controller."""
        if any(resource.resource_name == "1" for resource in request.resources):
            raise errors.NotController
        return accept(request)


@attrs.define
class Channel(NoOtherControllers):
    """Another node's controller; answers with error 77."""

    fails: bool = False
    frames: list[bytes] = attrs.field(factory=list)

    async def forward(self, frame: bytes, requester: Requester) -> bytes:
        assert requester == CLIENT
        self.frames.append(frame)
        if self.fails:
            raise errors.RequestTimedOut
        answer = UnregisterBrokerResponse(error_code=77)
        return b"".join(response_parts(KEY, 0, 99, answer))[4:]


def refuse(request: UnregisterBrokerRequest, error: errors.KafkaError) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error.code)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace this node's handler: broker 7 is registered, broker 8 gets NOT_CONTROLLER."""

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
    """Return the error code, and the number of requests that were forwarded."""
    channel: Any = Channel(fails)
    controller: Any = Controller(active, alone)
    services = services_of(active_controller=ActiveController(controller, channel))
    frame = request_frame(KEY, 0, 99, "c", UnregisterBrokerRequest(broker_id=broker))[4:]
    requests = Dispatcher(services, side).for_connection("PLAINTEXT", "10.1.2.3")
    parts = await requests.answer(memoryview(frame))
    assert parts is not None
    correlation_id, response = read_response(KEY, 0, b"".join(parts)[4:])
    assert correlation_id == 99
    assert all(sent == frame for sent in channel.frames), "forwarded unchanged"
    return response.error_code, len(channel.frames)


@pytest.mark.parametrize(
    ("broker", "more", "expected"),
    [
        (7, {"active": True}, (0, 0)),
        (7, {"active": False}, (77, 1)),
        (8, {"active": True}, (77, 1)),  # resigned in between
        (7, {"active": False, "fails": True}, (errors.RequestTimedOut.code, 1)),
        (8, {"active": False, "alone": True}, (77, 1)),
        (7, {"active": False, "alone": True}, (0, 0)),  # it starts, and no other node could answer
        (8, {"active": True, "side": ListenerType.CONTROLLER}, (errors.NotController.code, 0)),
        (8, {"active": False, "side": ListenerType.CONTROLLER}, (errors.NotController.code, 0)),
    ],
)
@pytest.mark.usefixtures("local")
async def test_request_is_forwarded_unless_this_controller_is_active(
    broker: int, more: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert await ask(broker, **more) == expected


@attrs.define
class Settings(NoOtherControllers):
    """Another node's controller that accepts every change of settings, or does not answer."""

    silent: bool = False
    resource_names: list[str] = attrs.field(factory=list)
    """The resources that this controller got."""

    async def send(self, request: Any, requester: Requester | None = None) -> object:
        assert requester == CLIENT
        if self.silent:
            raise errors.RequestTimedOut
        self.resource_names = [resource.resource_name for resource in request.resources]
        return accept(request)


def accept(request: Any) -> Any:
    """Return the response to a change of settings that succeeds, in another order."""
    response: Any = BY_KEY[spec_of(type(request)).api_key].response  # type: ignore[index]
    results = [
        response.AlterConfigsResourceResponse(
            error_code=0,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in reversed(request.resources)
    ]
    return response(responses=results)


OTHER = "Unexpected broker id, expected 1, but received 2"
NO_NUMBER = "Node id must be an integer, but it is: x"


async def alter(
    key: int,
    names: list[str],
    channel: Settings,
    *,
    active: bool = False,
    settings: dict[str, str] | None = None,
) -> dict[str, tuple[int, str | None]]:
    """Change settings of a topic t and of brokers; return the results, in order."""
    api: Any = BY_KEY[key].request
    operation = {"config_operation": 0} if key == 44 else {}
    resources = [
        api.AlterConfigsResource(
            resource_type=2 if name == "t" else 4,
            resource_name=name,
            configs=[
                api.AlterConfigsResource.AlterableConfig(name=setting, value=value, **operation)
                for setting, value in (settings or {}).items()
            ],
        )
        for name in names
    ]
    controller: Any = Controller(active)
    services = services_of(
        config=node_config(), active_controller=ActiveController(controller, channel)
    )
    frame = request_frame(key, 1, 99, "c", api(resources=resources, validate_only=False))[4:]
    requests = Dispatcher(services, ListenerType.BROKER).for_connection("PLAINTEXT", "10.1.2.3")
    parts = await requests.answer(memoryview(frame))
    assert parts is not None
    correlation_id, response = read_response(key, 1, b"".join(parts)[4:])
    assert correlation_id == 99
    return {r.resource_name: (r.error_code, r.error_message) for r in response.responses}


@pytest.mark.parametrize("key", [33, 44])
@pytest.mark.parametrize(
    ("silent", "names", "passed_on", "expected"),
    [
        (False, ["1", "", "t"], ["1", "", "t"], {}),
        (False, ["t", "2", "1", "x"], ["t", "1"], {"2": (42, OTHER), "x": (42, NO_NUMBER)}),
        (False, ["2"], [], {"2": (42, OTHER)}),
        (True, ["2", "t"], [], {"2": (42, OTHER), "t": (7, None)}),
    ],
)
async def test_settings_of_other_brokers_are_refused_and_not_forwarded(
    key: int,
    silent: bool,
    names: list[str],
    passed_on: list[str],
    expected: dict[str, tuple[int, str]],
) -> None:
    """A broker answers for its own settings; other resources are forwarded, in their order."""
    channel = Settings(silent)
    results = await alter(key, names, channel)
    assert channel.resource_names == passed_on
    assert list(results) == names
    assert {name: result for name, result in results.items() if result != (0, None)} == expected


@pytest.mark.parametrize("key", [33, 44])
@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("1", {"node.id": "5"}, "Cannot update these configs dynamically: [node.id]"),
        ("1", {"log.retention.ms": "abc"}, "Not a number of type LONG"),
        ("1", {"listener.name.x.ssl.key.password": "p"}, "would show them"),
        ("1", {"log.retention.ms": "0"}, "must be -1 (never) or at least 1"),
        ("", {"max.connections.per.ip": "-1"}, "Value must be at least 0"),
        ("", {"listener.name.x.ssl.keystore.type": "PEM"}, "at default cluster level"),
    ],
)
async def test_settings_of_brokers_are_checked_before_another_controller_gets_them(
    key: int, name: str, settings: dict[str, str], reason: str
) -> None:
    """Apache Kafka's controllers leave these checks to the broker and store what they get."""
    channel = Settings()
    results = await alter(key, [name], channel, settings=settings)
    code, message = results[name]
    assert (code, channel.resource_names) == (42, [])
    assert reason in (message or "")
    assert await alter(key, [name], channel, settings={"log.retention.ms": "1000"}) == {
        name: (0, None)
    }
    assert channel.resource_names == [name]


@pytest.mark.parametrize("key", [33, 44])
@pytest.mark.parametrize(
    ("names", "passed_on"),
    [(["2", "t"], []), (["t", "2", "1"], ["t", "1"])],  # decided here; resigned in between
)
async def test_settings_are_changed_here_unless_this_controller_is_replaced(
    key: int, names: list[str], passed_on: list[str]
) -> None:
    channel = Settings()
    results = await alter(key, names, channel, active=True)
    assert channel.resource_names == passed_on
    expected = {name: (42, OTHER) if name == "2" else (0, None) for name in names}
    assert list(results.items()) == list(expected.items())


class Debt(Channel):
    """A controller that throttles the client."""

    async def forward(self, frame: bytes, requester: Requester) -> bytes:
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
async def test_client_is_muted_for_the_throttle_time_of_a_forwarded_answer(
    request_: Any, key: int, version: int
) -> None:
    """Invariant 104: as in Kafka, in every version; old clients do not wait by themselves."""
    channel: Any = Debt()
    controller: Any = Controller(is_active=False)
    services = services_of(active_controller=ActiveController(controller, channel))
    requests = Dispatcher(services, ListenerType.BROKER).for_connection("PLAINTEXT", "10.1.2.3")
    frame = request_frame(key, version, 99, "c", request_)[4:]
    parts = await requests.answer(memoryview(frame))
    assert parts is not None
    assert requests.muted_s == 2.5


async def test_forwarded_answer_without_throttle_time_does_not_mute(local: None) -> None:
    channel: Any = Channel()
    controller: Any = Controller(is_active=False)
    services = services_of(active_controller=ActiveController(controller, channel))
    requests = Dispatcher(services, ListenerType.BROKER).for_connection("PLAINTEXT", "10.1.2.3")
    frame = request_frame(KEY, 0, 99, "c", UnregisterBrokerRequest(broker_id=7))[4:]
    await requests.answer(memoryview(frame))
    assert requests.muted_s == 0
