"""One writer's turn: events step at once, effects wait for the turn, idle machines sleep."""

from math import inf

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire.drive import Driver, Slices
from kwire.testing.raft import TestClock


@attrs.define
class Echo:
    """Repeats what it hears, and says ``tick`` five seconds after it last heard something."""

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


async def test_deadlines_ring_and_move(autojump_clock: MockClock) -> None:
    seen: list[tuple[float, str]] = []
    start = trio.current_time()

    async def perform(effects: list[str]) -> None:
        seen.extend((trio.current_time() - start, effect) for effect in effects)

    driver = Driver(Echo(), perform, TestClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        driver.feed("a")
        await trio.sleep(12)
        driver.feed("b")
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    assert seen == [(0, "a"), (5, "tick"), (10, "tick"), (12, "b"), (17, "tick")]


async def test_an_earlier_deadline_counts_at_once(autojump_clock: MockClock) -> None:
    seen: list[float] = []
    start = trio.current_time()

    async def perform(effects: list[str]) -> None:
        seen.append(trio.current_time() - start)

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
    assert seen == [0, 1, 2]


async def test_long_work_gives_way_once_a_slice() -> None:
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
        given = turns_of_others - before
        nursery.cancel_scope.cancel()
    assert 3 <= given <= 5
