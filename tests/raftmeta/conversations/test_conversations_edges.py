"""Compare the responses to ApiVersions, and the Envelopes of brokers, with the recordings.

Every connection to a controller begins with ApiVersions. Every Envelope was encoded by a broker.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from kwire.codec.apis import ListenerType
from kwire.codec.compile import encode
from kwire.codec.frame import read_response
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.unserved import UNSERVED
from kwire.net.controller_channel import ControllerChannel
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.mutation_quota import Requester
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.storage_format.format import feature_records
from tests.support.handlers.services import services_of
from tests.support.raftmeta.controller_log import frames_of
from tests.support.raftmeta.controller_replay import LEVELS
from tests.support.raftmeta.conversations import CLUSTERS, Frame, recording

COUNTS = {"ApiVersions": 138, "Envelope": 15}
"""Number of these requests that reached controllers."""
UNKNOWN = {"metadata.version": 7}
"""Levels that Kafka's controller answers as finalized before it has read any."""


def requests_of(api: str) -> Iterator[tuple[str, Frame]]:
    for number in (number for numbers in CLUSTERS.values() for number in numbers):
        for frame in recording(number).frames:
            if frame.is_request and frame.api == api and frame.target.startswith("controller-"):
                yield number, frame


def levels(answer: ApiVersionsResponse) -> dict[str, int]:
    return {feature.name: feature.max_version_level for feature in answer.finalized_features}


def supported_features(answer: ApiVersionsResponse) -> dict[str, tuple[int, int]]:
    features = answer.supported_features
    return {feature.name: (feature.min_version, feature.max_version) for feature in features}


def apis(answer: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


async def ours(request: bytes, image: MetadataImage, kraft_version: int) -> Any:
    """Return the response of kwire's controller in the same state."""
    quorum: Any = SimpleNamespace(kraft_version=kraft_version)
    services = services_of(image=image, quorum=quorum, supported_features=SUPPORTED)
    requests = Dispatcher(services, ListenerType.CONTROLLER).for_connection(
        "CONTROLLER", "127.0.0.1"
    )
    parts = await requests.answer(memoryview(request))
    assert parts is not None
    return read_response(18, 4, b"".join(parts)[4:])[1]


async def test_controller_reports_the_recorded_versions_and_features() -> None:
    """The APIs of Kafka's controllers as far as they are built, and all features."""
    for number, frame in requests_of("ApiVersions"):
        frames = frames_of(number)
        if (frame.key, False) not in frames:
            continue
        _, theirs = read_response(18, 4, frames[frame.key, False])
        finalized = levels(theirs)
        kraft_version = finalized.pop("kraft.version", 0)
        is_known = theirs.finalized_features_epoch >= 0
        assert finalized == (LEVELS if is_known else UNKNOWN), (number, frame)
        image = MetadataImage()
        if is_known:
            applied = Applied(theirs.finalized_features_epoch)
            image, _ = apply(image, feature_records(LEVELS), applied)
        answer = await ours(frames[frame.key, True], image, kraft_version)
        own = levels(answer)
        assert own.pop("kraft.version", 0) == kraft_version
        assert own == (LEVELS if is_known else {})
        assert supported_features(answer) == supported_features(theirs)
        assert apis(answer).items() <= apis(theirs).items()
        assert apis(theirs).keys() - apis(answer).keys() <= UNSERVED.keys()


async def test_envelopes_are_encoded_as_recorded() -> None:
    sent: list[EnvelopeRequest] = []

    class Channel(ControllerChannel):
        async def send(self, request: Any, requester: Any = None) -> EnvelopeResponse:
            sent.append(request)
            return EnvelopeResponse(response_data=b"")

    nothing: Any = SimpleNamespace(add_leadership_listener=lambda listener: None)
    channel = Channel(
        nothing,
        registrations=nothing,
        own_requests=nothing,
        isr_proposals=nothing,
        client_requests=nothing,
    )
    for number, frame in requests_of("Envelope"):
        inside = bytes(frame.message().request_data)
        await channel.forward(inside, Requester(("User", "ANONYMOUS"), ""))
        assert frames_of(number)[frame.key, True].endswith(encode(sent[-1], 0))


def test_recordings_have_the_expected_number_of_requests() -> None:
    assert {api: len(list(requests_of(api))) for api in COUNTS} == COUNTS
