"""Signals and waits for an offset: the tasks that are woken, and the memory of ended waits."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from kwire.waits import Deadlines, OffsetWaits, Signal, Slow, Steps, run_until_wait


class Waiting:
    """Tasks that wait, and the numbers of those that were woken, in order."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.woken: list[int] = []

    async def wait_in_task(self, number: int, wait: Callable[..., Any], *arguments: Any) -> None:
        """Wait in a task of its own; return when that task is blocked or done."""

        async def run() -> None:
            await wait(*arguments)
            self.woken.append(number)

        self.nursery.start_soon(run)
        await wait_all_tasks_blocked()

    async def take_woken(self) -> list[int]:
        await wait_all_tasks_blocked()
        woken, self.woken = self.woken, []
        return woken


async def test_signal_that_is_set_ends_later_waits_until_it_is_cleared() -> None:
    signal = Signal()
    async with trio.open_nursery() as nursery:
        tasks = Waiting(nursery)
        await tasks.wait_in_task(1, signal.wait)
        assert await tasks.take_woken() == []
        signal.set()
        await tasks.wait_in_task(2, signal.wait)
        assert sorted(await tasks.take_woken()) == [1, 2]
        signal.clear()
        await tasks.wait_in_task(3, signal.wait)
        assert await tasks.take_woken() == []
        nursery.cancel_scope.cancel()


async def test_notification_wakes_only_the_tasks_that_wait() -> None:
    signal = Signal()
    signal.notify()
    async with trio.open_nursery() as nursery:
        tasks = Waiting(nursery)
        await tasks.wait_in_task(1, signal.wait)
        await tasks.wait_in_task(2, signal.wait)
        assert await tasks.take_woken() == []
        signal.notify()
        assert sorted(await tasks.take_woken()) == [1, 2]
        await tasks.wait_in_task(3, signal.wait)
        assert await tasks.take_woken() == []
        nursery.cancel_scope.cancel()


async def test_wait_for_a_set_signal_lets_other_tasks_run() -> None:
    signal = Signal()
    signal.set()
    with trio.testing.assert_checkpoints():
        await signal.wait()


@given(moves=st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=15))
async def test_offset_wakes_the_waits_up_to_it(moves: list[tuple[bool, int]]) -> None:
    waits, waiting = OffsetWaits(), dict[int, int]()
    async with trio.open_nursery() as nursery:
        tasks = Waiting(nursery)
        for number, (is_wait, offset) in enumerate(moves):
            if is_wait:
                await tasks.wait_in_task(number, waits.wait, offset)
                waiting[number] = offset
            else:
                waits.reach(offset)
                expected = [n for n, end in waiting.items() if end <= offset]
                assert sorted(await tasks.take_woken()) == expected
                waiting = {n: end for n, end in waiting.items() if end > offset}
            assert len(waits) == len(waiting)
        waits.end_all()
        assert sorted(await tasks.take_woken()) == sorted(waiting)
        assert len(waits) == 0


async def test_cancelled_waits_take_no_memory_and_block_no_others() -> None:
    waits, scope = OffsetWaits(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        tasks = Waiting(nursery)

        async def wait_all_cancellable() -> None:
            with scope:
                async with trio.open_nursery() as many:
                    for offset in range(1000):
                        many.start_soon(waits.wait, offset)

        nursery.start_soon(wait_all_cancellable)
        for offset in range(0, 1000, 100):
            await tasks.wait_in_task(offset, waits.wait, offset)
        assert len(waits) == 1010
        scope.cancel()
        await wait_all_tasks_blocked()
        assert len(waits) == 10
        assert waits._events is not None
        assert len(waits._events._entries) < 50
        waits.reach(500)
        assert sorted(await tasks.take_woken()) == [0, 100, 200, 300, 400, 500]
        waits.end_all()
        assert sorted(await tasks.take_woken()) == [600, 700, 800, 900]


def steps(work: Callable[[], None]) -> int:
    """Count the lines of Python that ``work`` runs; those of a loop count in each round."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


async def test_cost_of_cancelled_waits_is_linear() -> None:
    async def count_steps(waits_count: int) -> int:
        waits = OffsetWaits()
        async with trio.open_nursery() as nursery:
            for _ in range(waits_count):
                nursery.start_soon(waits.wait, 7)
            await wait_all_tasks_blocked()
            heap = waits._events
            assert heap is not None
            events = list(heap._live)

            def drop_all() -> None:
                for event in events:
                    heap.discard(event)

            step_count = steps(drop_all)
            assert len(waits) == 0
            nursery.cancel_scope.cancel()
        return step_count

    assert await count_steps(2000) < 20 * await count_steps(200)


@pytest.mark.parametrize("is_running", [True, False])
async def test_wait_ends_at_its_offset_or_its_deadline(
    autojump_clock: object, is_running: bool
) -> None:
    """Each wait has its own deadline, with or without the task that keeps them."""
    waits, deadlines = OffsetWaits(), Deadlines(trio.current_time)
    ended: dict[int, tuple[float, bool]] = {}
    start = trio.current_time()

    async def wait(offset: int, seconds: int) -> None:
        has_reached = await waits.wait_until(offset, deadlines, start + seconds)
        ended[offset] = round(trio.current_time() - start), has_reached

    async with trio.open_nursery() as nursery:
        if is_running:
            await nursery.start(deadlines.run)
        async with trio.open_nursery() as waiting:
            for offset, seconds in ((1, 9), (2, 3), (3, 5), (4, 9)):
                waiting.start_soon(wait, offset, seconds)
            await trio.sleep(1)
            waits.reach(1)
            await trio.sleep(3)
            waits.end_all()
        nursery.cancel_scope.cancel()
    assert ended == {1: (1, True), 2: (3, False), 3: (4, True), 4: (4, True)}
    assert not len(waits)


async def test_deadlines_end_with_their_task(autojump_clock: object) -> None:
    waits, deadlines = OffsetWaits(), Deadlines(trio.current_time)
    async with trio.open_nursery() as nursery, trio.open_nursery() as keeping:
        await keeping.start(deadlines.run)
        nursery.start_soon(waits.wait_until, 1, deadlines, 1e9)
        await wait_all_tasks_blocked()
        keeping.cancel_scope.cancel()
    assert trio.current_time() < 1e9


def wait_each(seconds: list[float]) -> Steps[str]:
    """Wait as often as the list says; a wait that fails counts as none."""
    log = []

    async def wait(duration_s: float) -> float:
        if duration_s < 0:
            raise ValueError
        await trio.sleep(duration_s)
        return duration_s

    for duration_s in seconds:
        if duration_s:
            try:
                log.append((yield partial(wait, duration_s)))
            except ValueError:
                log.append(0.0)
    return str(log)


async def test_work_that_need_not_wait_is_done_at_once() -> None:
    assert run_until_wait(wait_each([0, 0])) == "[]"


async def test_work_continues_with_the_results_and_errors_of_its_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slow = run_until_wait(wait_each([0, 3, -1, 0, 2]))
    assert isinstance(slow, Slow)
    assert trio.current_time() == 0
    assert await slow.finish() == "[3, 0.0, 2]"
    assert trio.current_time() == 5


async def test_cancelled_wait_ends_the_work(autojump_clock: trio.testing.MockClock) -> None:
    ended = []

    def work() -> Steps[None]:
        try:
            yield trio.sleep_forever
        finally:
            ended.append(True)

    slow = run_until_wait(work())
    assert isinstance(slow, Slow)
    with trio.move_on_after(1):
        await slow.finish()
    assert ended == [True]
