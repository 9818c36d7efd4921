"""Blocks of producer ids: each id once, a block asked for when one is empty (invariant 47)."""

import itertools

import trio
import trio.lowlevel

from kwire.replica.producer_ids import ProducerIds


async def test_requests_at_once_get_different_ids():
    blocks = itertools.count(0, 3)
    asked = 0

    async def allocate() -> tuple[int, int]:
        nonlocal asked
        asked += 1
        first = next(blocks)
        await trio.lowlevel.checkpoint()
        return first, 3

    subject = ProducerIds(allocate)
    found: list[int] = []

    async def take() -> None:
        found.append(await subject.take())

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(take)
    assert len(set(found)) == 20
    found.append(await subject.take())
    assert len(set(found)) == 21
    assert asked <= 25


async def test_a_failed_request_can_be_tried_again():
    answers = iter([(5, 0), (10, 2)])  # an empty block is asked again

    async def allocate() -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        return next(answers)

    assert await ProducerIds(allocate).take() == 10
