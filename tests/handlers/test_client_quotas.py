"""Quotas on the bytes that clients produce and fetch (KIP-13, KIP-219)."""

import tracemalloc
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.fetch import FetchRequest
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared.client_quotas import (
    CLIENTS_MAX,
    FETCHED,
    PRODUCED,
    ClientQuotas,
)
from kwire.net.waiting_answers import Unfinished
from kwire.raftmeta.metadata.quota_lookup import Quotas
from tests.support.handlers.broker import Broker, broker, create_topic, one_batch, write
from tests.support.handlers.fetch import Fetcher, at, values
from tests.support.handlers.fetch import request as fetch_request
from tests.support.handlers.produce import request as produce_request
from tests.support.handlers.throttles import throttles

BATCH = one_batch(bytes(1000))
RATE = len(BATCH)
"""A quota in bytes a second; ten times as much may be used at once."""
PRODUCE, FETCH = 0, 1


def quota(name: str, value: float, **entity: str | None) -> Any:
    """Return the record of a quota of users ("user") and client ids ("client_id").

    A value of 0 removes the quota.
    """
    parts = [
        r.ClientQuotaRecord.EntityData(entity_type=kind.replace("_", "-"), entity_name=entity_name)
        for kind, entity_name in entity.items()
    ]
    return r.ClientQuotaRecord(entity=parts, key=name, value=value, remove=not value)


@attrs.define
class Client:
    """A connection of a client, whose requests go through the codec."""

    subject: Broker
    name: str = "c"
    requests: ConnectionRequests = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        dispatcher = Dispatcher(self.subject.services, ListenerType.BROKER)
        self.requests = dispatcher.for_connection("PLAINTEXT", "127.0.0.1")

    def frame(self, key: int, version: int, request: Any) -> memoryview:
        return memoryview(request_frame(key, version, 7, self.name, request))[4:]

    async def call(self, key: int, version: int, request: Any) -> Any:
        parts = await self.requests.answer(self.frame(key, version, request))
        if parts is None:
            return None
        data = b"".join(p if isinstance(p, bytes) else p.read() for p in parts)
        return read_response(key, version, data[4:])[1]

    async def produce(self, count: int = 1, *, acks: int = 1) -> Any:
        """Send requests of one batch each; return the last response."""
        for _ in range(count):
            answer = await self.call(PRODUCE, 9, produce_request(("t", 0, BATCH), acks=acks))
        return answer

    async def fetch(self, offset: int = 0, replica: int = -1) -> tuple[int, int]:
        """Return the number of records and the throttle time of a response."""
        request = fetch_request(at("t", offset), replica_id=replica)
        answer = await self.call(FETCH, 12, request)
        records = [v for t in answer.responses for p in t.partitions for v in values(p)]
        return len(records), answer.throttle_time_ms


@pytest.fixture
async def subject() -> Broker:
    subject = broker()
    await create_topic(subject)
    return subject


async def fill(subject: Broker, batches: int) -> None:
    partition = subject.replicas.partitions.find("t", 0)
    assert partition is not None
    for _ in range(batches):
        write(subject, partition, bytes(1000))


async def test_producer_above_its_quota_is_throttled(
    subject: Broker, autojump_clock: MockClock
) -> None:
    """Invariant 104: its records are stored, and its connection is not read for that time."""
    await subject.publish(quota(PRODUCED, RATE, client_id="c"))
    client = Client(subject)
    assert (await client.produce(9)).throttle_time_ms == 0
    assert client.requests.muted_s == 0
    answers = [await client.produce() for _ in range(3)]
    answer = answers[-1]
    assert 2000 <= answer.throttle_time_ms < 4000
    assert client.requests.muted_s == answer.throttle_time_ms / 1000
    (partition,) = answer.responses[0].partition_responses
    assert (partition.error_code, partition.base_offset) == (0, 11)
    seconds = sum(answer.throttle_time_ms for answer in answers) / 1000
    assert throttles(subject.services.metrics, PRODUCED) == (3, pytest.approx(seconds))
    await trio.sleep(client.requests.muted_s + 10)
    assert (await client.produce()).throttle_time_ms == 0


async def test_producer_without_acknowledgements_is_throttled(
    subject: Broker, autojump_clock: MockClock
) -> None:
    await subject.publish(quota(PRODUCED, RATE, client_id="c"))
    client = Client(subject)
    assert await client.produce(12, acks=0) is None
    assert client.requests.muted_s > 1


async def test_producer_is_muted_before_its_followers_have_the_batch(
    subject: Broker, autojump_clock: MockClock
) -> None:
    """Its next requests would be read meanwhile, because Produce requests wait together."""
    await subject.publish(quota(PRODUCED, 1, client_id="c"))
    await create_topic(subject, "two", replicas=(1, 2))
    client = Client(subject)
    request = produce_request(("two", 0, BATCH), timeout_ms=10)
    await client.requests.dispatcher.prepare(PRODUCE, 9)
    answer = client.requests.answer_now(client.frame(PRODUCE, 9, request))
    assert isinstance(answer, Unfinished)
    muted_s, client.requests.muted_s = client.requests.muted_s, 0.0
    assert muted_s > RATE - 10
    parts = await answer.finish()
    data = b"".join(p for p in parts if isinstance(p, bytes))
    assert read_response(PRODUCE, 9, data[4:])[1].throttle_time_ms == muted_s * 1000
    assert client.requests.muted_s == 0, "it is not muted a second time"


async def test_consumer_gets_what_its_quota_has_left_and_then_waits(
    subject: Broker, autojump_clock: MockClock
) -> None:
    await fill(subject, 40)
    await subject.publish(quota(FETCHED, RATE, client_id="c"))
    client = Client(subject)
    count, throttle_ms = await client.fetch()
    assert (count, throttle_ms) == (10, 0), "the bytes of ten seconds"
    count, throttle_ms = await client.fetch(10)
    assert count == 1, "a batch at least"
    assert throttle_ms == pytest.approx(1000, abs=50)
    assert client.requests.muted_s == throttle_ms / 1000
    other = Client(subject)
    assert await other.fetch(11) == (0, throttle_ms), "all connections share the quota"
    assert other.requests.muted_s == throttle_ms / 1000
    seconds = pytest.approx(2 * throttle_ms / 1000)
    assert throttles(subject.services.metrics, FETCHED) == (2, seconds)
    offset, started = 11, trio.current_time()
    while offset < 40:
        await trio.sleep(throttle_ms / 1000)
        count, throttle_ms = await client.fetch(offset)
        offset += count
    assert trio.current_time() - started == pytest.approx(29, abs=12)


async def test_throttled_fetch_leaves_its_session_as_it_was(
    subject: Broker, autojump_clock: MockClock
) -> None:
    await subject.create("t", partitions=30)
    fetcher = Fetcher(subject)
    await fetcher.fetch(*range(30))
    assert await fetcher.fetch() == {}
    partition = subject.replicas.partitions.find("t", 20)
    assert partition is not None
    write(subject, partition, b"v")
    await subject.publish(quota(FETCHED, 1, user=None))
    quotas = subject.current.image.quotas
    limit = subject.parts.client_quotas.limit(quotas, FETCHED, "ANONYMOUS", "")
    assert limit is not None
    limit.record(100, trio.current_time())
    assert await fetcher.fetch() == {}
    await trio.sleep(100)
    assert list(await fetcher.fetch()) == [20]


async def test_followers_have_no_quota(subject: Broker, autojump_clock: MockClock) -> None:
    await create_topic(subject, "two", replicas=(1, 2), isr=(1, 2))
    await subject.publish(quota(FETCHED, 1, user=None))
    partition = subject.replicas.partitions.find("two", 0)
    assert partition is not None
    write(subject, partition, bytes(1000))
    client = Client(subject)
    for _ in range(3):
        request = fetch_request(
            at("two"), replica_state=FetchRequest.ReplicaState(replica_id=2, replica_epoch=-1)
        )
        answer = await client.call(FETCH, 17, request)
        assert answer.throttle_time_ms == 0
        assert len(values(answer.responses[0].partitions[0])) == 1


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ({"client_id": None}, [5, 5]),
        ({"client_id": "c"}, [5, None]),
        ({"user": "ANONYMOUS"}, [5, 5]),
        ({"user": None}, [5, 5]),
        ({"user": "other"}, [None, None]),
        ({"client_id": "d", "user": None}, [None, 5]),
    ],
)
async def test_quota_applies_to_its_clients(
    quotas: Mapping[str, str | None], expected: list[float | None], subject: Broker
) -> None:
    await subject.publish(quota(PRODUCED, 5, **quotas))
    rates = ClientQuotas()
    limits = [rates.limit(subject.current.image.quotas, PRODUCED, "ANONYMOUS", c) for c in "cd"]
    assert [limit and limit.bytes_per_s for limit in limits] == expected
    is_shared = limits[0] is limits[1] and limits[0] is not None
    assert is_shared == ("client_id" not in quotas and None not in expected)


def test_client_without_a_client_id_has_only_the_quota_of_its_user() -> None:
    """No default for client ids applies to an empty client id, as in Kafka."""
    names: list[tuple[tuple[str, str | None], ...]] = [
        (("client-id", None), ("user", "ann")),
        (("user", "ann"),),
        (("client-id", None), ("user", None)),
        (("user", None),),
        (("client-id", None),),
    ]
    quotas: Quotas = {entity: {PRODUCED: float(rate)} for rate, entity in enumerate(names, 1)}
    rates = {
        (user, client_id): None if limit is None else limit.bytes_per_s
        for user in ("ann", "bob")
        for client_id in ("", "c")
        for limit in (ClientQuotas().limit(quotas, PRODUCED, user, client_id),)
    }
    assert rates == {("ann", ""): 2, ("ann", "c"): 1, ("bob", ""): 4, ("bob", "c"): 3}
    only_clients = {names[-1]: {PRODUCED: 5.0}}
    assert ClientQuotas().limit(only_clients, PRODUCED, "ann", "") is None


async def test_changed_quota_keeps_what_was_counted(
    subject: Broker, autojump_clock: MockClock
) -> None:
    await subject.publish(quota(PRODUCED, RATE, client_id="c"))
    client = Client(subject)
    await client.produce(9)
    await subject.publish(quota(PRODUCED, RATE * 0.1, client_id="c"))
    assert (await client.produce()).throttle_time_ms > 80_000
    await subject.publish(quota(PRODUCED, 0, client_id="c"))
    assert (await client.produce()).throttle_time_ms == 0


async def test_rates_of_many_clients_are_bounded(
    subject: Broker, autojump_clock: MockClock
) -> None:
    await subject.publish(quota(PRODUCED, 5, client_id=None))
    rates, quotas = ClientQuotas(), subject.current.image.quotas
    for number in range(CLIENTS_MAX + 10):
        rates.limit(quotas, PRODUCED, "ANONYMOUS", str(number))
    assert len(rates._rates) == len(rates._limits) == 10


def test_changes_of_quotas_do_not_add_to_the_remembered_rates() -> None:
    rates, most = ClientQuotas(), CLIENTS_MAX - 1
    for change in range(3):
        quotas: Quotas = {(("client-id", None),): {PRODUCED: 1000.0 + change}}
        for number in range(most):
            rates.limit(quotas, PRODUCED, "alice", f"{change}-{number}")
    assert len(rates._rates) <= CLIENTS_MAX


def test_endless_client_ids_have_their_quota_and_take_no_memory() -> None:
    """Invariant 104: a client chooses its id, of up to 32 KB."""
    quotas: Quotas = {(("client-id", None),): {PRODUCED: 1000.0}}
    rates, last = ClientQuotas(), "499" + "x" * 30_000
    tracemalloc.start()
    try:
        for number in range(500):
            limit = rates.limit(quotas, PRODUCED, "alice", f"{number}" + "x" * 30_000)
            assert limit is not None
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 2 << 20
    assert rates.limit(quotas, PRODUCED, "alice", last) is limit
    assert rates.limit(quotas, PRODUCED, "alice", last + "x") is not limit
