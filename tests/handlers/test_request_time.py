"""The quota on the request time of clients (KIP-124)."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.errors import BrokerIdNotRegistered
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.busy_time import measure_steps
from kwire.handlers.shared.client_quotas import PRODUCED, REQUEST_TIME
from kwire.raftmeta.controller.active_controller import ActiveController
from tests.support.handlers.broker import Broker, broker, create_topic, one_batch
from tests.support.handlers.fetch import at
from tests.support.handlers.fetch import request as fetch_request
from tests.support.handlers.produce import request as produce_request
from tests.support.handlers.throttles import throttles
from tests.support.raftmeta.no_others import NoOtherControllers

PRODUCE, FETCH, LIST_GROUPS, API_VERSIONS, UNREGISTER_BROKER = 0, 1, 16, 18, 64
PERCENTAGE = 50.0
"""Half of the time: five seconds in the ten full windows, which may be used at once."""
STEP_S = 0.6


def quota(name: str, value: float, **entity: str | None) -> Any:
    parts = [
        r.ClientQuotaRecord.EntityData(entity_type=kind.replace("_", "-"), entity_name=entity_name)
        for kind, entity_name in entity.items()
    ]
    return r.ClientQuotaRecord(entity=parts, key=name, value=value, remove=False)


class Client:
    """A connection whose stopwatch advances by :data:`STEP_S` at each look."""

    def __init__(self, subject: Broker, name: str = "c") -> None:
        self.name = name
        dispatcher = Dispatcher(subject.services, ListenerType.BROKER)
        self.requests = dispatcher.for_connection("PLAINTEXT", "127.0.0.1")
        ticks = count()
        self.requests._now = lambda: next(ticks) * STEP_S

    async def call(self, key: int, version: int, request: Any) -> Any:
        """Answer a request, and return the throttle time in its response."""
        frame = memoryview(request_frame(key, version, 7, self.name, request))[4:]
        await self.requests.dispatcher.prepare(key, version)
        parts = await self.requests.answer(frame)
        assert parts is not None
        data = b"".join(p if isinstance(p, bytes) else p.read() for p in parts)
        return read_response(key, version, data[4:])[1].throttle_time_ms

    async def api_versions(self) -> Any:
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        return await self.call(API_VERSIONS, 3, request)

    async def fetch(self, replica: int = -1) -> Any:
        request = fetch_request(at("t", 0), replica_id=replica)
        return await self.call(FETCH, 12, request)

    async def produce(self) -> Any:
        return await self.call(PRODUCE, 9, produce_request(("t", 0, one_batch(b"x"))))


@pytest.fixture
async def subject(autojump_clock: MockClock) -> Broker:
    subject = broker()
    await create_topic(subject)
    return subject


CALLS: dict[str, Callable[[Client], Any]] = {
    "usual": Client.api_versions,
    "slow": Client.fetch,
    "produce": Client.produce,
    "async": lambda client: client.call(LIST_GROUPS, 4, ListGroupsRequest()),
}


@pytest.mark.parametrize("kind", CALLS)
async def test_client_over_its_request_time_is_throttled(
    autojump_clock: MockClock, subject: Broker, kind: str
) -> None:
    """Invariant 104: its connection is not read for the time that the response names."""
    await subject.publish(quota(REQUEST_TIME, PERCENTAGE, client_id="c"))
    client, other = Client(subject), Client(subject, "other")
    answers = []
    for _ in range(12):
        answers.append(await CALLS[kind](client))
        await CALLS[kind](other)
    assert answers[0] == 0
    assert answers[-1] == 1000, "one window at most"
    assert client.requests.muted_s == 1.0
    assert other.requests.muted_s == 0.0
    counted = throttles(subject.services.metrics, REQUEST_TIME)
    assert counted == (sum(map(bool, answers)), pytest.approx(sum(answers) / 1000))
    await trio.sleep(60)
    assert await Client(subject).api_versions() == 0


async def test_requests_of_nodes_are_exempt(autojump_clock: MockClock, subject: Broker) -> None:
    await subject.publish(quota(REQUEST_TIME, PERCENTAGE, client_id=None))
    node = Client(subject, "broker-2")
    for _ in range(12):
        assert await node.fetch(replica=2) == 0
    assert node.requests.muted_s == 0.0


async def test_longer_throttle_time_of_two_quotas_counts(
    autojump_clock: MockClock, subject: Broker
) -> None:
    await subject.publish(quota(REQUEST_TIME, 0.1, client_id="c"))
    assert await Client(subject).produce() == 1000
    await subject.publish(quota(PRODUCED, 1.0, client_id="c"))
    client = Client(subject)
    throttle_ms = await client.produce()
    assert throttle_ms > 1000
    assert client.requests.muted_s == throttle_ms / 1000


class Elections:
    """A controller that is never active; its call ends after a minute."""

    is_active, is_alone = True, True

    async def call(self, decide: Any, request: Any, **options: Any) -> None:
        await trio.sleep(60)
        raise BrokerIdNotRegistered


async def test_wait_for_the_controller_is_no_request_time(
    autojump_clock: MockClock, subject: Broker
) -> None:
    """Invariant 104: a slow controller does not use up the time of its clients."""
    controller: Any = Elections()
    subject.replace(active_controller=ActiveController(controller, NoOtherControllers()))
    await subject.publish(quota(REQUEST_TIME, 0.1, client_id="c"))
    client = Client(subject)
    client.requests._now = trio.current_time
    for _ in range(3):
        assert await client.call(UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=9)) == 0
    assert trio.current_time() >= 180
    assert client.requests.muted_s == 0.0


async def test_only_the_steps_of_a_request_count(autojump_clock: MockClock) -> None:
    """The waits between them, in which other requests run, are left out."""
    now = 0.0
    counted: list[float] = []

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def work() -> str:
        spend(1)
        await trio.sleep(1)
        spend(2)
        await trio.sleep(1)
        spend(3)
        return "done"

    async def others() -> None:
        for _ in range(4):
            spend(100)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await measure_steps(work(), lambda: now, counted.append) == "done"
    assert sum(counted) == 6


async def test_cancelled_request_ends_as_without_a_stopwatch(autojump_clock: MockClock) -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ends.append("cleaned up")

    with trio.move_on_after(1) as scope:
        await measure_steps(work(), trio.current_time, lambda seconds: None)
    assert scope.cancelled_caught
    assert ends == ["cleaned up"]
