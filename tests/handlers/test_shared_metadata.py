"""Equal Metadata requests share one encoded answer, for as long as it is the right one."""

from typing import Any

import pytest

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.metadata import MetadataRequest, MetadataResponse
from kwire.errors import LeaderNotAvailable, ListenerNotFound, UnknownTopicOrPartition
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared import client_view
from kwire.handlers.shared.client_quotas import PRODUCED
from kwire.handlers.shared.client_view import ClientView
from kwire.handlers.shared.shared_response import FRAMES_MAX
from tests.support.handlers.broker import NODE, Broker, broker, create_topic, topic_id

METADATA = 3
VERSIONS = range(14)
RequestedTopic = MetadataRequest.MetadataRequestTopic
Endpoint = r.RegisterBrokerRecord.BrokerEndpoint


def connection(subject: Broker, listener: str = "A") -> ConnectionRequests:
    return Dispatcher(subject.services, ListenerType.BROKER).for_connection(listener, "peer")


async def ask(
    client: ConnectionRequests, version: int, *names: str, everything: bool = False, **more: Any
) -> tuple[int, MetadataResponse]:
    """Return the correlation id and the response to a request for topics, or for all."""
    named = [RequestedTopic(name=name) for name in names]
    topics = None if everything and version else named  # version 0 asks for all by an empty list
    request = MetadataRequest(topics=topics, **more)
    frame = request_frame(METADATA, version, 7, "c", request)
    parts = await client.answer(memoryview(frame)[4:])
    assert parts is not None
    data = b"".join(parts)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return read_response(METADATA, version, memoryview(data)[4:])


async def cluster() -> Broker:
    """Return a broker that clients reach on the listener A, with two topics."""
    subject = broker()
    endpoints = [Endpoint(name=n, host=f"host-{n}", port=9, security_protocol=0) for n in "AB"]
    registration: dict[str, Any] = {
        "incarnation_id": bytes(16),
        "broker_epoch": 1,
        "rack": None,
        "fenced": False,
    }
    await subject.publish(
        r.RegisterBrokerRecord(broker_id=NODE, end_points=endpoints, **registration),
        r.RegisterBrokerRecord(broker_id=NODE + 1, end_points=endpoints[:1], **registration),
    )
    await create_topic(subject, "t", partitions=3)
    await create_topic(subject, "u")
    return subject


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the listeners of the answers that were not shared."""
    built: list[str] = []

    class Counted(ClientView):
        def __init__(self, image: Any, listener: str) -> None:
            built.append(listener)
            super().__init__(image, listener)

    monkeypatch.setattr("kwire.handlers.metadata.ClientView", Counted)
    assert client_view.ClientView is ClientView
    return built


@pytest.mark.parametrize("version", VERSIONS)
async def test_shared_answer_equals_the_first_one(version: int, views: list[str]) -> None:
    subject = await cluster()
    requests: list[Any] = [((), {"everything": True}), (("t",), {}), (("u", "t", "t"), {})]
    for names, more in requests:
        views.clear()
        answers = [await ask(connection(subject), version, *names, **more) for _ in range(3)]
        assert answers[0][1].topics
        assert answers[0] == answers[1] == answers[2]
        assert len(views) == (1 if version else 3)
        topics = None if more and version else [RequestedTopic(name=name) for name in names]
        whole = await subject.call(MetadataRequest(topics=topics), version, listener="A")
        assert whole == answers[0][1]


async def test_topics_by_id_share_an_answer(views: list[str]) -> None:
    subject = await cluster()
    request = MetadataRequest(topics=[RequestedTopic(name=None, topic_id=topic_id("t"))])
    for _ in range(2):
        answer = await subject.call(request, 12, listener="A")
        assert answer.topics[0].name == "t"
    frame = request_frame(METADATA, 12, 7, "c", request)
    for _ in range(2):
        assert await connection(subject).answer(memoryview(frame)[4:])
    assert len(views) == 3


async def test_change_of_the_metadata_is_in_the_next_answer() -> None:
    subject = await cluster()
    client = connection(subject)
    for epoch in range(3):
        for _ in range(2):
            _, response = await ask(client, 12, "t")
            assert response.topics[0].partitions[0].leader_epoch == epoch
        await subject.lead_again("t")


async def test_each_listener_has_its_own_answers() -> None:
    subject = await cluster()
    for listener in "ABAB":
        _, response = await ask(connection(subject, listener), 12, "t")
        assert {each.host for each in response.brokers} == {f"host-{listener}"}
        assert len(response.brokers) == (2 if listener == "A" else 1)


async def test_answers_with_errors_are_not_shared(views: list[str]) -> None:
    """Older versions have other errors, and a missing topic may be created."""
    subject = await cluster()
    await subject.lead_again("t", leader=NODE + 1)
    client = connection(subject, "B")
    for version in (12, 1, 12, 1):
        _, response = await ask(client, version, "t")
        expected = ListenerNotFound if version == 12 else LeaderNotAvailable
        assert response.topics[0].partitions[0].error_code == expected.code
    for _ in range(2):
        _, response = await ask(client, 12, "missing", allow_auto_topic_creation=False)
        assert response.topics[0].error_code == UnknownTopicOrPartition.code
    assert len(views) == 6


class Owner:
    """An authorizer that lets one principal describe topics."""

    def allows(self, principal: Any, *_: object) -> bool:
        return bool(principal == "owner")


async def test_answers_are_not_shared_with_an_authorizer(views: list[str]) -> None:
    subject = await cluster()
    await ask(connection(subject), 12, everything=True)
    subject.replace(authorizer=Owner())
    _, response = await ask(connection(subject), 12, everything=True)
    assert response.topics == []
    assert len(views) == 2


async def test_answers_are_not_shared_with_quotas(views: list[str]) -> None:
    subject = await cluster()
    entity = r.ClientQuotaRecord.EntityData(entity_type="client-id", entity_name="c")
    await subject.publish(
        r.ClientQuotaRecord(entity=[entity], key=PRODUCED, value=1e9, remove=False)
    )
    for _ in range(2):
        await ask(connection(subject), 12, "t")
    assert len(views) == 2


async def test_large_answers_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are encoded in slices, and would be joined and copied in one turn."""
    monkeypatch.setattr("kwire.handlers.dispatch.BYTES_MAX", 1000)
    monkeypatch.setattr("kwire.handlers.dispatch.QUICK_ANSWER_S", 0)
    subject = await cluster()
    await create_topic(subject, "large", partitions=300)
    for _ in range(2):
        _, response = await ask(connection(subject), 12, "large")
        assert len(response.topics[0].partitions) == 300
    assert not subject.services.metadata_frames.of(subject.current.image)


async def test_number_of_shared_answers_is_limited() -> None:
    subject = await cluster()
    client, frames = connection(subject), subject.services.metadata_frames
    for number in range(3 * FRAMES_MAX):
        await ask(client, 12, *(["t"] * (number + 1)))
        assert 0 < len(frames.of(subject.current.image)) <= FRAMES_MAX
