"""controller_mutation_rate (KIP-599): how much a client may create and delete a second."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.handlers.create_partitions import create_partitions
from kwire.handlers.create_topics import create_topics
from kwire.handlers.delete_topics import delete_topics
from kwire.handlers.dispatch import Context, Principal, Services
from kwire.raftmeta.mutation_quota import BUCKETS_MAX, BURST_SECONDS, RATE, MutationQuotas
from kwire.types import ZERO_UUID
from tests.raftmeta.clusters import Cluster
from tests.raftmeta.one_leader import OneLeader, in_office

REFUSED = errors.ThrottlingQuotaExceeded.code


class Wall:
    """A clock that a test moves."""

    t = 100.0

    def now(self) -> float:
        return self.t

    def now_ms(self) -> int:
        return int(self.t * 1000)


class Client:
    """A client of the active controller."""

    def __init__(self, rate: float | None, version: int, **entity: str | None) -> None:
        cluster = Cluster()
        part = r.ClientQuotaRecord.EntityData
        named = entity or {"user": "ann"}
        if rate is not None:
            parts = [
                part(entity_type=kind.replace("_", "-"), entity_name=name)
                for kind, name in named.items()
            ]
            cluster.write(r.ClientQuotaRecord(entity=parts, key=RATE, value=rate, remove=False))
        self.clock = Wall()
        services = Services(controller=in_office(OneLeader(at_once=True), cluster))
        services.clock = self.clock
        services.image = cluster.state.image
        self.context = Context(
            services=services,
            client_id="tool",
            principal=Principal("User", "ann"),
            api_version=version,
        )
        self.made = 0

    async def create(self, partitions: int) -> tuple[int, int]:
        """The code and the throttle time of a creation."""
        self.made += 1
        topic = CreateTopicsRequest.CreatableTopic(
            name=f"t{self.made}", num_partitions=partitions, replication_factor=1
        )
        reply = await create_topics.function(self.context, CreateTopicsRequest(topics=[topic]))
        assert reply is not None
        return reply.topics[0].error_code, reply.throttle_time_ms


async def test_client_in_debt_is_refused_until_the_rate_has_made_it_good() -> None:
    """Kafka's token bucket: eleven seconds' worth at once, and one change may go beyond."""
    client = Client(2.0, version=7)
    assert await client.create(int(2 * BURST_SECONDS)) == (0, 0)
    assert await client.create(10) == (0, 0), "the bucket is empty, not in debt"
    assert await client.create(1) == (REFUSED, 5_000)
    client.clock.t += 4.9
    assert await client.create(1) == (REFUSED, 100)
    client.clock.t += 0.2
    assert await client.create(1) == (0, 0)


async def test_old_clients_are_slowed_and_not_refused() -> None:
    """They don't know the error: they are told to wait."""
    client = Client(2.0, version=5)
    assert await client.create(30) == (0, 4_000)
    assert await client.create(2) == (0, 5_000)


async def test_clients_without_a_quota_are_not_limited() -> None:
    client = Client(None, version=7)
    for _ in range(3):
        assert await client.create(100) == (0, 0)


@pytest.mark.parametrize(
    ("entity", "is_limited"),
    [
        ({"user": "ann"}, True),
        ({"user": None}, True),
        ({"client_id": "tool"}, True),
        ({"client_id": None}, True),
        ({"client_id": "tool", "user": "ann"}, True),
        ({"client_id": None, "user": None}, True),
        ({"user": "bob"}, False),
        ({"client_id": "other"}, False),
        ({"client_id": "other", "user": "ann"}, False),
    ],
)
async def test_quota_of_whom_the_client_is(entity: dict[str, Any], is_limited: bool) -> None:
    client = Client(1.0, 7, **entity)
    await client.create(20)
    assert (await client.create(1))[0] == (REFUSED if is_limited else 0)


async def test_partitions_and_deletions_count_too() -> None:
    client = Client(1.0, version=7)
    await client.create(2)
    for api, number in ((create_partitions, 14), (delete_topics, 1)):
        asked: Any = CreatePartitionsRequest.CreatePartitionsTopic
        request: Any = CreatePartitionsRequest(
            topics=[asked(name="t1", count=number, assignments=None)],
            timeout_ms=1000,
            validate_only=False,
        )
        if api is delete_topics:
            named = DeleteTopicsRequest.DeleteTopicState(name="t1", topic_id=ZERO_UUID)
            request = DeleteTopicsRequest(topics=[named], timeout_ms=1000)
        function: Any = api.function
        reply = await function(client.context, request)
        results = reply.responses if api is delete_topics else reply.results
        expected = (REFUSED, 3_000) if api is delete_topics else (0, 0)
        assert (results[0].error_code, reply.throttle_time_ms) == expected


async def test_what_is_refused_for_another_reason_costs_nothing() -> None:
    client = Client(1.0, version=7)
    for _ in range(30):
        client.made = 0
        code, _ = await client.create(1)
    assert code == errors.TopicAlreadyExists.code
    assert await client.create(10) == (0, 0)


def test_buckets_are_bounded() -> None:
    quotas = MutationQuotas()
    held: Any = {(("client-id", None),): {RATE: 1.0}}
    for number in range(BUCKETS_MAX + 5):
        quotas.permit(held, "ann", f"c{number}", 0.0, strict=True)
    assert len(quotas._buckets) <= BUCKETS_MAX
