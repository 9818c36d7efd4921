"""Requests that wait for a commit when the lease of their coordinator's broker ends.

A broker that is cut off from the others commits nothing more; its clients still reach it.
"""

import pytest
import trio
import trio.testing

from kwire.errors import KafkaError, NotCoordinator
from tests.support.coordinator.node import commit_request, make_node, wait_result
from tests.support.transaction.world import T0, World

LEASE_S = 4.0


class Outcome:
    """The time and the error of a request's answer."""

    at: float | None = None
    error: KafkaError | None = None


@pytest.mark.parametrize("is_extended", [False, True])
async def test_transactional_request_is_refused_when_the_lease_ends(
    is_extended: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """The producer looks for the next coordinator at once, not when its own time limit ends."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        producer = await subject.init()
        began = trio.current_time()
        subject.log.lease.end = began + LEASE_S
        subject.log.replicas_lag = True
        outcome = Outcome()

        async def add() -> None:
            try:
                await subject.add(producer, T0)
            except KafkaError as error:
                outcome.error = error
            outcome.at = trio.current_time() - began

        nursery.start_soon(add)
        await trio.sleep(LEASE_S / 2)
        if is_extended:
            subject.log.lease.end += 2 * LEASE_S
        await trio.sleep(LEASE_S)
        if is_extended:
            assert outcome.at is None, "the request waits while the lease holds"
            subject.log.catch_up()
            await trio.sleep(1)
            assert outcome.error is None
            assert outcome.at == pytest.approx(1.5 * LEASE_S)
        else:
            assert isinstance(outcome.error, NotCoordinator)
            assert outcome.at == pytest.approx(LEASE_S, abs=0.1)
        nursery.cancel_scope.cancel()


async def test_commit_of_offsets_is_refused_when_the_lease_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    node.log.replicas_lag = True
    began = trio.current_time()
    node.log.lease.end = began + LEASE_S
    with pytest.raises(NotCoordinator):
        await wait_result(node.groups.commit(commit_request(1)))
    assert trio.current_time() - began == pytest.approx(LEASE_S, abs=0.1)
