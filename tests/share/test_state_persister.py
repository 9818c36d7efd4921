"""The persister of a server: which coordinator it asks, how often, and how many at once."""

import pytest
import trio

from kwire.errors import CoordinatorNotAvailable, NetworkException, NotCoordinator
from kwire.share.persister import InitialState, StateBatch
from kwire.share.state.persister import CoordinatorPersister
from tests.support.share.coordinator import TOPIC, FakeCluster, share_node

HERE, THERE = 1, 2


def make(nursery: trio.Nursery, leader: int | None) -> tuple[FakeCluster, CoordinatorPersister]:
    nodes = {HERE: share_node(), THERE: share_node()}
    if leader is not None:
        nodes[leader].elect()
    cluster = FakeCluster(nodes, leader)
    return cluster, CoordinatorPersister(cluster, lambda: nursery)


async def initialize(persister: CoordinatorPersister, *partitions: int) -> dict[int, int]:
    states = {partition: InitialState(1, 0) for partition in partitions}
    return await persister.initialize("g", TOPIC, states)


async def write(persister: CoordinatorPersister, partition: int, offset: int = 0) -> int:
    batch = StateBatch(offset, offset, 2, 1)
    return await persister.write("g", TOPIC, partition, 1, 0, -1, 0, [batch])


async def test_own_coordinator_is_asked_without_a_request(nursery: trio.Nursery) -> None:
    cluster, persister = make(nursery, HERE)
    assert await initialize(persister, 0, 1) == {0: 0, 1: 0}
    assert cluster.requests == []


async def test_request_is_repeated_at_the_next_coordinator(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster, persister = make(nursery, THERE)
    await initialize(persister, 0)
    cluster.nodes[THERE].resign()
    cluster.nodes[HERE].log.data = cluster.nodes[THERE].log.data
    cluster.nodes[HERE].log.ends = cluster.nodes[THERE].log.ends
    await nursery.start(cluster.coordinator().run)

    async def fail_over() -> None:
        await trio.sleep(0.25)
        cluster.leader = HERE
        cluster.nodes[HERE].elect(1)

    nursery.start_soon(fail_over)
    assert await write(persister, 0) == 0
    nursery.cancel_scope.cancel()


async def test_topic_is_created_on_first_use(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster, persister = make(nursery, None)

    def move_here() -> None:
        cluster.leader = HERE
        cluster.nodes[HERE].elect()

    cluster.on_topic_created = move_here
    assert await initialize(persister, 0) == {0: 0}
    assert cluster.creations == 1


@pytest.mark.parametrize(
    "error", [NotCoordinator(), CoordinatorNotAvailable(), NetworkException()], ids=repr
)
async def test_requests_without_an_answer_end_after_some_attempts(
    error: NotCoordinator, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster, persister = make(nursery, THERE)
    cluster.failures = [error] * 100
    began = trio.current_time()
    assert await initialize(persister, 0) == {0: error.code}
    assert len(cluster.requests) == 10
    assert 15 < trio.current_time() - began < 30


async def test_only_partitions_that_failed_are_asked_about_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster, persister = make(nursery, THERE)
    assert await initialize(persister, 0, 100) == {0: 0, 100: 3}  # No topic has partition 100.
    first, second, *_ = (request for _, request in cluster.requests)
    assert [p.partition for p in first.topics[0].partitions] == [0, 100]
    assert [p.partition for p in second.topics[0].partitions] == [100]


async def test_final_errors_are_not_retried(nursery: trio.Nursery) -> None:
    cluster, persister = make(nursery, THERE)
    assert await write(persister, 0) == 42
    assert len(cluster.requests) == 1


async def test_writes_that_wait_for_a_request_share_the_next(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster, persister = make(nursery, THERE)
    await initialize(persister, *range(6))
    cluster.requests.clear()
    cluster.delay_s = 1
    with trio.fail_after(60):
        await write_together(persister)
    named = [sorted(p.partition for p in r.topics[0].partitions) for _, r in cluster.requests]
    assert named == [[0], [1, 2, 3], [3]]


async def write_together(persister: CoordinatorPersister) -> None:
    """Write to one share partition, and to others while that request is open."""
    async with trio.open_nursery() as writers:
        writers.start_soon(write, persister, 0)
        await trio.sleep(0.5)
        for partition in (1, 2, 3, 3):
            writers.start_soon(write, persister, partition)
