"""Jumps of the wall clock change no time-out of a transaction, and expire no transactional id."""

import pytest
import trio

from kwire.errors import TransactionalIdNotFound
from kwire.transaction.model import TransactionState
from tests.support.clock import JumpingClock
from tests.support.coordinator.node import commit_request, fetch_offset, make_node, wait_result
from tests.support.transaction.world import T0, World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMPS = pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
CHECK_S = 10
"""The interval at which a coordinator looks for transactions that take too long."""


@JUMPS
async def test_transaction_has_its_whole_time_when_the_clock_jumps(
    jump_ms: int, autojump_clock: object
) -> None:
    """Invariant 107: it is neither aborted too early nor left open."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        producer = await subject.init(timeout_ms=20_000)
        await subject.add(producer, T0)
        subject.clock.jump_ms = jump_ms
        await trio.sleep(19)
        assert (await subject.state()).state is TransactionState.ONGOING
        await trio.sleep(1 + CHECK_S + 1)
        assert (await subject.state()).state is TransactionState.COMPLETE_ABORT
        nursery.cancel_scope.cancel()


async def test_partition_added_later_does_not_prolong_a_transaction(
    autojump_clock: object,
) -> None:
    """Invariant 55."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        producer = await subject.init(timeout_ms=20_000)
        await subject.add(producer, T0)
        await trio.sleep(15)
        await subject.add(producer, *subject.brokers.partitions)
        await trio.sleep(5 + CHECK_S + 1)
        assert (await subject.state()).state is TransactionState.COMPLETE_ABORT
        nursery.cancel_scope.cancel()


async def test_coordinator_with_a_clock_behind_waits_for_one_time_out_at_most(
    autojump_clock: object,
) -> None:
    """Invariant 107: the record's start is ahead of the clock of the next coordinator."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        await subject.add(await subject.init(timeout_ms=20_000), T0)
        subject.clock = JumpingClock(-HOUR_MS)
        await subject.start()
        await trio.sleep(20 + CHECK_S + 1)
        assert (await subject.state()).state is TransactionState.COMPLETE_ABORT
        nursery.cancel_scope.cancel()


async def test_idle_transactional_id_stays_when_the_clock_jumps(autojump_clock: object) -> None:
    """Invariant 107: it expires once its time has passed."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        await subject.init()
        subject.clock.jump_ms = 8 * DAY_MS
        await trio.sleep(2 * 3600)
        assert (await subject.state()).state is TransactionState.EMPTY
        await trio.sleep(7 * 24 * 3600)
        with pytest.raises(TransactionalIdNotFound):
            await subject.state()
        nursery.cancel_scope.cancel()


async def test_committed_offsets_stay_when_the_clock_jumps(autojump_clock: object) -> None:
    """Invariants 73 and 107."""
    clock = JumpingClock()
    node = make_node(clock=clock)
    node.service.on_elected(node.groups.partition_of("g"), 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        await wait_result(node.groups.commit(commit_request(5)))
        clock.jump_ms = 8 * DAY_MS
        await trio.sleep(3600)
        assert await fetch_offset(node) == 5
        await trio.sleep(7 * 24 * 3600)
        assert await fetch_offset(node) == -1
        nursery.cancel_scope.cancel()
