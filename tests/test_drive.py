"""The driver of a stepper: events step at once, effects wait for the turn, idle machines sleep."""

from collections.abc import Generator
from functools import partial
from itertools import pairwise
from math import inf

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire.drive import Driver, Slices, Wakes, run_in_slices, run_together
from simulation.raft.quorums import TestClock


@attrs.define
class Echo:
    """Repeats each event, and says ``tick`` five seconds after the last one."""

    deadline: float = inf
    timeout: float = 5.0

    def step(self, event: str | None, now: float, now_ms: int) -> tuple[str, ...]:
        self.deadline = now + self.timeout
        return (event if event is not None else "tick",)


async def test_events_of_one_turn_are_performed_together(autojump_clock: MockClock) -> None:
    turns: list[list[str]] = []

    async def perform(effects: list[str]) -> None:
        turns.append(effects)
        await trio.sleep(1)  # an fsync

    driver = Driver(Echo(timeout=inf), perform, TestClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        assert driver.feed("a") == ("a",)
        driver.feed("b")
        await wait_all_tasks_blocked()
        driver.feed("c")
        driver.feed("d")
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    assert turns == [["a", "b"], ["c", "d"]]


async def test_event_moves_the_deadline(autojump_clock: MockClock) -> None:
    steps: list[tuple[float, str]] = []
    start = trio.current_time()

    async def perform(effects: list[str]) -> None:
        steps.extend((trio.current_time() - start, effect) for effect in effects)

    driver = Driver(Echo(), perform, TestClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        driver.feed("a")
        await trio.sleep(12)
        driver.feed("b")
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    assert steps == [(0, "a"), (5, "tick"), (10, "tick"), (12, "b"), (17, "tick")]


async def test_earlier_deadline_takes_effect_at_once(autojump_clock: MockClock) -> None:
    times: list[float] = []
    start = trio.current_time()

    async def perform(effects: list[str]) -> None:
        times.append(trio.current_time() - start)

    machine = Echo(timeout=100)
    driver = Driver(machine, perform, TestClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        driver.feed("a")
        await trio.sleep(1)
        machine.timeout = 1
        driver.feed("b")
        await trio.sleep(1.5)
        nursery.cancel_scope.cancel()
    assert times == [0, 1, 2]


async def test_long_work_gives_way_once_per_slice() -> None:
    """Eight items of 1 ms in slices of 2 ms: others run four times."""
    time_ms = 0
    turns_of_others = 0

    async def other() -> None:
        nonlocal turns_of_others
        while True:
            await trio.lowlevel.checkpoint()
            turns_of_others += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        before = turns_of_others
        slices = Slices(lambda: time_ms / 1000, seconds=0.002)
        for _ in range(8):
            time_ms += 1
            await slices.pause()
        turns = turns_of_others - before
        nursery.cancel_scope.cancel()
    assert 3 <= turns <= 5


async def test_few_of_many_concurrent_calls_begin_before_other_tasks_run() -> None:
    begun = 0
    counts: list[int] = []
    is_over = trio.Event()

    async def call(number: int) -> int:
        nonlocal begun
        begun += 1
        await is_over.wait()
        return number

    async def watch() -> None:
        while begun < 500:
            counts.append(begun)
            await trio.lowlevel.checkpoint()
        is_over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        results = await run_together([partial(call, number) for number in range(500)])
    assert results == list(range(500))
    assert max(after - before for before, after in pairwise(counts)) <= 32


async def test_many_tasks_are_woken_a_few_per_turn() -> None:
    wakes = Wakes(2)
    woken: list[int] = []
    events = [trio.Event() for _ in range(20)]

    async def sleep(number: int) -> None:
        await events[number].wait()
        woken.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakes.run)
        for number in range(20):
            nursery.start_soon(sleep, number)
        await wait_all_tasks_blocked()
        wakes.wake(events[:10])
        wakes.wake(events[10:])
        before = most = 0
        while len(woken) < 20:
            await trio.lowlevel.checkpoint()
            most, before = max(most, len(woken) - before), len(woken)
        nursery.cancel_scope.cancel()
    assert most <= 4, "trio runs a turn's tasks in any order: one look may see two turns"
    assert all(later - earlier > -2 for earlier, later in pairwise(woken))


async def test_few_tasks_are_woken_at_once() -> None:
    wakes = Wakes(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakes.run)
        await wait_all_tasks_blocked()
        events = [trio.Event(), trio.Event()]
        wakes.wake(events)
        assert all(event.is_set() for event in events)
        nursery.cancel_scope.cancel()


async def test_every_sleeper_is_woken() -> None:
    """Also those that wait before the service runs, before its first sleep, and at its end."""
    wakes = Wakes(2)
    events = [trio.Event() for _ in range(12)]
    wakes.wake(events[:4])
    assert all(event.is_set() for event in events[:4])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakes.run)
        await trio.lowlevel.checkpoint()
        wakes.wake(events[4:8])
        await wait_all_tasks_blocked()
        assert all(event.is_set() for event in events[:8])
        wakes.wake(events[8:])
        nursery.cancel_scope.cancel()
    assert all(event.is_set() for event in events)


async def test_generator_runs_in_slices_and_its_value_is_returned(
    autojump_clock: MockClock,
) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    def steps() -> Generator[None, None, str]:
        for _ in range(100):
            autojump_clock.jump(0.001)
            yield
        return "done"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await run_in_slices(steps()) == "done"
        nursery.cancel_scope.cancel()
    assert turns >= 3, "16 steps are longer than a slice"
