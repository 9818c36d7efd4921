"""controller_mutation_rate (KIP-599): how much a client may create and delete a second."""

import tracemalloc
from random import Random
from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.handlers.create_partitions import create_partitions
from kwire.handlers.create_topics import create_topics
from kwire.handlers.delete_topics import delete_topics
from kwire.handlers.shared.context import Context, Principal
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.mutation_quota import (
    BUCKETS_MAX,
    BURST_SECONDS,
    RATE,
    MutationQuotas,
    Requester,
)
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.types import ZERO_UUID
from kwire.waits import Slow
from tests.support.handlers.services import services_of
from tests.support.handlers.throttles import throttles
from tests.support.raftmeta.clusters import Cluster, node_config
from tests.support.raftmeta.no_others import NoOtherControllers, only_controller
from tests.support.raftmeta.one_leader import OneLeader, active_controller

REFUSED = errors.ThrottlingQuotaExceeded.code


class Wall:
    """A clock that a test moves."""

    t = 100.0

    def now(self) -> float:
        return self.t

    def now_ms(self) -> int:
        return int(self.t * 1000)


class IdlePublisher(MetadataPublisher):
    """A publisher that publishes nothing, and lets no caller wait for it."""

    async def wait_for(self, condition: Any) -> None:
        """Return at once."""


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
        self.quorum = OneLeader(at_once=True)
        controller = active_controller(self.quorum, cluster)
        controller._clock = self.clock
        active = only_controller(controller)
        services = services_of(
            active_controller=active,
            topic_creation=AutoTopicCreation(active, IdlePublisher()),
            image=cluster.state.image,
        )
        self.context = Context(
            services=services,
            client_id="tool",
            principal=Principal("User", "ann"),
            api_version=version,
        )
        self.topic_count = 0

    async def create(self, partitions: int) -> tuple[int, int]:
        """Create a topic; return the error code and the throttle time."""
        self.topic_count += 1
        topic = CreateTopicsRequest.CreatableTopic(
            name=f"t{self.topic_count}", num_partitions=partitions, replication_factor=1
        )
        reply = await create_topics(self.context, CreateTopicsRequest(topics=[topic]))
        assert reply is not None
        return reply.topics[0].error_code, reply.throttle_time_ms


async def test_client_in_debt_is_refused_until_its_bucket_refills() -> None:
    """Kafka's token bucket: eleven seconds' worth at once, and one change may go beyond."""
    client = Client(2.0, version=7)
    assert await client.create(int(2 * BURST_SECONDS)) == (0, 0)
    assert await client.create(10) == (0, 0), "the bucket is empty, not in debt"
    assert await client.create(1) == (REFUSED, 5_000)
    client.clock.t += 4.9
    assert await client.create(1) == (REFUSED, 100)
    client.clock.t += 0.2
    assert await client.create(1) == (0, 0)
    assert throttles(client.context.services.metrics, RATE) == (2, pytest.approx(5.1))


async def test_old_clients_are_slowed_and_not_refused() -> None:
    """They don't know the error: they get a throttle time."""
    client = Client(2.0, version=5)
    assert await client.create(30) == (0, 4_000)
    assert await client.create(2) == (0, 5_000)


@pytest.mark.parametrize("rate", [1e-7, 5e-324])
async def test_throttle_time_is_capped_at_the_largest_int32(rate: float) -> None:
    """A decided change is answered, also if the debt takes years to pay."""
    client = Client(rate, version=5)
    assert await client.create(2_000) == (0, (1 << 31) - 1)


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
async def test_quota_applies_to_matching_user_and_client_id(
    entity: dict[str, Any], is_limited: bool
) -> None:
    client = Client(1.0, 7, **entity)
    await client.create(20)
    assert (await client.create(1))[0] == (REFUSED if is_limited else 0)


async def test_partitions_and_deletions_count_too() -> None:
    client = Client(1.0, version=7)
    await client.create(2)
    for api, number in ((create_partitions, 14), (delete_topics, 1)):
        topic_type: Any = CreatePartitionsRequest.CreatePartitionsTopic
        request: Any = CreatePartitionsRequest(
            topics=[topic_type(name="t1", count=number, assignments=None)],
            timeout_ms=1000,
            validate_only=False,
        )
        if api is delete_topics:
            named = DeleteTopicsRequest.DeleteTopicState(name="t1", topic_id=ZERO_UUID)
            request = DeleteTopicsRequest(topics=[named], timeout_ms=1000)
        answer: Any = api.begin(client.context, request)
        reply = await answer.finish() if isinstance(answer, Slow) else answer
        results = reply.responses if api is delete_topics else reply.results
        expected = (REFUSED, 3_000) if api is delete_topics else (0, 0)
        assert (results[0].error_code, reply.throttle_time_ms) == expected
    assert throttles(client.context.services.metrics, RATE) == (1, 3)


async def test_request_refused_for_another_reason_takes_no_tokens() -> None:
    client = Client(1.0, version=7)
    for _ in range(30):
        client.topic_count = 0
        code, _ = await client.create(1)
    assert code == errors.TopicAlreadyExists.code
    assert await client.create(10) == (0, 0)


def test_buckets_are_bounded() -> None:
    quotas = MutationQuotas()
    client_quotas: Any = {(("client-id", None),): {RATE: 1.0}}
    for number in range(BUCKETS_MAX + 5):
        quotas.permit(client_quotas, "ann", f"c{number}", 0.0, strict=True)
    assert len(quotas._buckets) <= BUCKETS_MAX


def test_endless_client_ids_have_their_bucket_and_take_no_memory() -> None:
    """A client chooses its id, of up to 32 KB."""
    quotas, name = MutationQuotas(), "x" * 30_000
    client_quotas: Any = {(("client-id", None),): {RATE: 1.0}}
    tracemalloc.start()
    try:
        for number in range(500):
            permit = quotas.permit(client_quotas, "ann", f"{number}{name}", 0.0, strict=True)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 2 << 20
    again = quotas.permit(client_quotas, "ann", f"499{name}", 0.0, strict=True)
    assert again.bucket is permit.bucket
    other = quotas.permit(client_quotas, "ann", f"499{name}x", 0.0, strict=True)
    assert other.bucket is not permit.bucket


async def test_decision_that_is_made_again_counts_once() -> None:
    """A record that raft wrote in between took the offsets of a large decision."""
    client = Client(100.0, version=7)
    controller, quorum = client.context.controller, client.quorum

    async def disturb() -> None:
        while controller._large_decision is None:
            await trio.lowlevel.checkpoint()
        quorum.next_offset += 1

    decisions = 0

    def decide(state: ControllerState, request: CreateTopicsRequest) -> Any:
        nonlocal decisions
        decisions += 1
        return decide_create_topics(state, request, permit=permit)

    topic = CreateTopicsRequest.CreatableTopic(
        name="large", num_partitions=1000, replication_factor=1
    )
    permit = client.context.mutation_permit(strict_since=6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disturb)
        reply = await controller.call(decide, CreateTopicsRequest(topics=[topic]))
    assert (decisions, reply.topics[0].error_code) == (2, 0)
    assert permit.bucket is not None
    assert permit.bucket.tokens == 100.0 * BURST_SECONDS - 1000


@pytest.mark.parametrize("windows", [("1", "1"), ("3", "20")])
async def test_bucket_holds_the_rate_of_all_quota_windows(windows: tuple[str, str]) -> None:
    number, seconds = windows
    config = node_config(
        controller_quota_window_num=number, controller_quota_window_size_seconds=seconds
    )
    state = ControllerState(config=config, random=Random(1))
    client_quotas: Any = {(("user", "ann"),): {RATE: 2.0}}
    permit = state.mutations.permit(client_quotas, "ann", "tool", 0.0, strict=True)
    assert permit.bucket is not None
    assert permit.bucket.tokens == 2.0 * int(number) * int(seconds)


async def test_auto_created_topic_counts_for_the_client_that_named_it() -> None:
    """It is not created while the client is in debt; Kafka's broker names the client as well."""
    client = Client(2.0, version=12)
    creation = client.context.topic_creation
    results = await creation.ensure_topics(["free"], Requester(("User", "bob"), "tool"))
    assert results["free"].error_code == 0
    assert await client.create(30) == (0, 0)
    results = await creation.ensure_topics(["a"], client.context.requester)
    assert results["a"].error_code == REFUSED
    client.clock.t += 5
    for name in ("a", "b"):
        results = await creation.ensure_topics([name], client.context.requester)
        assert results[name].error_code == 0
    assert (await client.create(1))[0] == 0
    assert (await client.create(1))[0] == REFUSED, "three were created with tokens for two"


async def test_internal_topic_counts_for_the_broker_that_needs_it() -> None:
    client = Client(1.0, 7, client_id=None)
    await client.context.topic_creation.ensure_topics(["__consumer_offsets"])
    assert await client.create(1) == (0, 0)
    broker = Requester(("User", "ANONYMOUS"), "1")
    results = await client.context.topic_creation.ensure_topics(["other"], broker)
    assert results["other"].error_code == REFUSED


async def test_remote_active_controller_gets_the_request_in_the_clients_name() -> None:
    requests = []

    class Elsewhere(NoOtherControllers):
        async def send(self, request: Any, requester: Requester | None = None) -> object:
            requests.append((request.topics[0].name, requester))
            failed = CreateTopicsResponse.CreatableTopicResult(name="a", error_code=REFUSED)
            return CreateTopicsResponse(topics=[failed])

    client = Client(1.0, version=12)
    controller = client.context.controller
    creation = client.context.topic_creation
    creation.active = ActiveController(controller, Elsewhere())
    controller.on_leadership(LeaderAndEpoch(2, 6))
    results = await creation.ensure_topics(["a"], client.context.requester)
    assert results["a"].error_code == REFUSED
    assert requests == [("a", Requester(("User", "ann"), "tool", "127.0.0.1"))]
