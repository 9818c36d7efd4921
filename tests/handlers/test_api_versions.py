"""ApiVersions, the first request of a client, sent as frames."""

from typing import Any

import attrs
import pytest

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.handlers import served_on
from kwire.handlers.dispatch import Dispatcher
from kwire.raftmeta.metadata.image import Applied
from tests.support.handlers.services import services_of

KEY = 18


@attrs.frozen
class Image:
    """The part of the metadata that ApiVersions reads."""

    applied: Applied = attrs.field(factory=lambda: Applied(220, 1, 0))
    features: dict[str, int] = attrs.field(
        factory=lambda: {"metadata.version": 30, "group.version": 1, "share.version": 0}
    )
    quotas: dict[object, object] = attrs.field(factory=dict)


@attrs.frozen
class RaftService:
    kraft_version: int = 0


async def ask(
    version: int,
    *,
    name: str = "kwire-test",
    side: ListenerType = ListenerType.BROKER,
    wire: int | None = None,
    kraft: int = 0,
) -> ApiVersionsResponse:
    """Send a request of ``version``, or with ``wire`` in place of it; return the response."""
    services: Any = services_of(
        image=Image(),
        quorum=RaftService(kraft),
        supported_features={"metadata.version": (7, 30), "group.version": (0, 1)},
    )
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
    data = bytearray(request_frame(KEY, version, 5, "c", request)[4:])
    if wire is not None:
        data[2:4] = wire.to_bytes(2, "big", signed=True)
    requests = Dispatcher(services, side).for_connection("A", "127.0.0.1")
    parts = await requests.answer(memoryview(data))
    assert parts is not None
    frame = b"".join(parts)[4:]
    _, response = read_response(KEY, 0 if wire is not None else version, frame)
    assert isinstance(response, ApiVersionsResponse)
    return response


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("side", [ListenerType.BROKER, ListenerType.CONTROLLER])
async def test_response_lists_the_apis_that_the_listener_serves(
    version: int, side: ListenerType
) -> None:
    response = await ask(version, side=side)
    assert response.error_code == 0
    versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    apis = served_on(side)
    assert versions.keys() == apis.keys()
    for key, (first, last) in versions.items():
        assert first == (0 if BY_KEY[key].name == "Produce" else apis[key].first), "as in Kafka"
        assert last == apis[key].stable


async def test_response_has_supported_and_finalized_features() -> None:
    response = await ask(4)
    assert {f.name: (f.min_version, f.max_version) for f in response.supported_features} == {
        "metadata.version": (7, 30),
        "group.version": (0, 1),
    }
    assert response.finalized_features_epoch == 220
    assert {f.name: f.max_version_level for f in response.finalized_features} == {
        "metadata.version": 30,
        "group.version": 1,
    }


async def test_response_has_kraft_version() -> None:
    response = await ask(4, kraft=1)
    assert "kraft.version" in {f.name for f in response.finalized_features}


async def test_features_with_minimum_0_are_left_out_for_old_clients() -> None:
    response = await ask(3)
    assert [feature.name for feature in response.supported_features] == ["metadata.version"]


@pytest.mark.parametrize("wire", [5, 99, 32767, -1, -32768])
async def test_unknown_version_is_answered_in_version_0(wire: int) -> None:
    response = await ask(4, wire=wire)
    assert response.error_code == 35
    assert [(a.api_key, a.min_version, a.max_version) for a in response.api_keys] == [(KEY, 0, 4)]


@pytest.mark.parametrize("name", ["", "bad name", "-dash", "dash-", "ü", "a\n"])
async def test_invalid_software_name_is_refused(name: str) -> None:
    response = await ask(3, name=name)
    assert response.error_code == 42
    assert response.api_keys == []


@pytest.mark.parametrize("name", ["a", "apache-kafka-java", "sarama.1", "0"])
async def test_valid_software_name_is_accepted(name: str) -> None:
    assert (await ask(3, name=name)).error_code == 0
