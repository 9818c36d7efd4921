"""Producer ids: each is given once, a new block is allocated when one is empty (invariant 47)."""

import itertools

import pytest
import trio
import trio.lowlevel

from kwire.errors import (
    BrokerIdNotRegistered,
    CoordinatorLoadInProgress,
    KafkaError,
    NotController,
    RequestTimedOut,
)
from kwire.replica.producer_ids import ProducerIds


async def test_concurrent_requests_get_different_ids():
    blocks = itertools.count(0, 3)
    allocations = 0

    async def allocate() -> tuple[int, int]:
        nonlocal allocations
        allocations += 1
        first = next(blocks)
        await trio.lowlevel.checkpoint()
        return first, 3

    subject = ProducerIds(allocate)
    producer_ids: list[int] = []

    async def take() -> None:
        producer_ids.append(await subject.take())

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(take)
    assert len(set(producer_ids)) == 20
    producer_ids.append(await subject.take())
    assert len(set(producer_ids)) == 21
    assert allocations <= 25


async def test_another_block_is_allocated_after_an_empty_one():
    blocks = iter([(5, 0), (10, 2)])

    async def allocate() -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        return next(blocks)

    assert await ProducerIds(allocate).take() == 10


@pytest.mark.parametrize("error", [NotController, RequestTimedOut, BrokerIdNotRegistered])
async def test_error_of_the_controller_is_one_that_producers_retry(
    error: type[KafkaError],
) -> None:
    errors = [error()]

    async def allocate() -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        if errors:
            raise errors.pop()
        return 10, 2

    subject = ProducerIds(allocate)
    with pytest.raises(CoordinatorLoadInProgress):
        await subject.take()
    assert await subject.take() == 10
