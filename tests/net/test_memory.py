"""The bound on the memory of requests in flight: it holds, and no request waits for ever."""

import attrs
import pytest
import trio
import trio.testing

from kwire.net.request_memory import STALLED_S, RequestMemory


@attrs.define(eq=False)
class Peer:
    last_active: float = 0.0
    closed: str = ""

    def close(self, reason: str) -> None:
        self.closed = reason


async def test_claim_waits_until_an_answer_frees_bytes() -> None:
    memory = RequestMemory(100)
    first, second = Peer(), Peer()
    await memory.claim(80, first)
    memory.answering += 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.claim, 50, second)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.used == 80
        memory.answering -= 1
        memory.free(80, first)
    assert memory.used == 50


async def test_one_incomplete_frame_may_exceed_the_bound() -> None:
    memory = RequestMemory(100)
    first, second = Peer(), Peer()
    await memory.claim(60, first)
    await memory.claim(40, second)
    await memory.claim(500, first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.claim, 10, second)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.used == 600, "only one does"
        memory.free(560, first)
    assert memory.used == 50


async def test_claim_exceeds_the_bound_while_a_long_poll_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nearly always some Fetch waits for records, and frees few bytes at its end."""
    memory = RequestMemory(100)
    memory.answering = 1
    first, second = Peer(), Peer()
    await memory.claim(60, first)
    await memory.claim(40, second)
    with trio.fail_after(2 * STALLED_S):
        await memory.claim(10, first)
    assert memory.used == 110


async def test_exempt_connection_is_closed_when_it_stalls(
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory = RequestMemory(100)
    first, second = Peer(trio.current_time()), Peer()
    await memory.claim(200, first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.claim, 10, second)
        await trio.sleep(STALLED_S + 1)
        assert "stalled" in first.closed
        memory.free(200, first)
    assert memory.used == 10


class Steps(trio.abc.Instrument):
    """Counts the steps of the tasks that claim."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("claim")


async def test_freed_bytes_wake_only_the_claims_that_get_them() -> None:
    """The cost is not quadratic: an answer wakes only the claims that its bytes grant."""
    memory = RequestMemory(100)
    holder, peers = Peer(), [Peer() for _ in range(50)]
    await memory.claim(100, holder)
    memory.answering = 1
    steps = Steps()
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(memory.claim, 10, peer)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        for size in (10, 20):
            memory.free(size, holder)
            await trio.testing.wait_all_tasks_blocked()
            assert memory.used == 100
        trio.lowlevel.remove_instrument(steps)
        assert steps.count == 3
        assert len(nursery.child_tasks) == 47
        nursery.cancel_scope.cancel()
    assert memory.used == 100


async def test_claims_that_fit_pass_an_older_one_that_does_not() -> None:
    memory, holder, order = RequestMemory(100), Peer(), []
    await memory.claim(100, holder)
    memory.answering = 1

    async def claim(count: int) -> None:
        await memory.claim(count, Peer())
        order.append(count)

    async with trio.open_nursery() as nursery:
        for count in (60, 31, 10, 30, 9):
            nursery.start_soon(claim, count)
            await trio.testing.wait_all_tasks_blocked()
        memory.free(50, holder)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(order) == [9, 10, 31], "the oldest of those that fit"
        memory.free(31, holder)
        await trio.testing.wait_all_tasks_blocked()
        assert order[3:] == [30]
        memory.free(60, holder)
    assert memory.used == 99


async def test_large_claim_exceeds_the_bound_after_a_long_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Smaller claims and another exempt connection delay it only for a bounded time."""
    memory, holder, exempt, peers = RequestMemory(100), Peer(), Peer(), [Peer(), Peer()]
    await memory.claim(50, holder)
    await memory.claim(90, exempt)
    memory.answering = 1
    granted: list[int] = []

    async def claim(number: int) -> None:
        await memory.claim(200 + number, peers[number])
        granted.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(claim, number)
            await trio.sleep(1)
        exempt.last_active = trio.current_time() + 10 * STALLED_S
        await trio.sleep(3 * STALLED_S)
        assert (granted, exempt.closed) == ([], ""), "one at a time"
        memory.free(90, exempt)
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [0], "the oldest, though others are being answered"
        memory.free(200, peers[0])
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [0, 1]
        memory.free(201, peers[1])
    assert memory.used == 50


@pytest.mark.parametrize("granted_first", [False, True])
async def test_cancelled_claim_counts_no_bytes(granted_first: bool) -> None:
    """The freed bytes and the end of the connection come in one turn, in either order."""
    memory = RequestMemory(100)
    holder, peer = Peer(), Peer()
    await memory.claim(100, holder)
    memory.answering = 1
    counted = 0

    async def claim() -> None:
        nonlocal counted
        await memory.claim(10, peer)
        counted += 10

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim)
        await trio.testing.wait_all_tasks_blocked()
        if granted_first:
            memory.free(100, holder)
        nursery.cancel_scope.cancel()
        if not granted_first:
            memory.free(100, holder)
    assert memory.used == counted
