"""Simulated processes: a paused one takes no step, and an ended one's threads do nothing."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
import trio.lowlevel
import trio.testing

from simulation.replication.processes import (
    Gate,
    SimThreads,
    simulated_processes,
    start_behind,
    world_time,
)


def run_simulated(main: Callable[[], Awaitable[object]]) -> None:
    with simulated_processes(1, SimThreads(Random(1))):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_paused_process_takes_no_step_until_it_goes_on():
    """Invariant 34 needs it: time goes on for others while a process is stopped."""
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await trio.sleep(1.0)
            ticks.append(trio.current_time())

    async def process() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)

    async def main() -> None:
        gate = Gate()
        async with trio.open_nursery() as nursery:
            start_behind(gate, nursery, process)
            await trio.sleep(1.5)
            gate.shut()
            await trio.sleep(5.0)
            gate.open()
            await trio.sleep(0.9)
            nursery.cancel_scope.cancel()

    run_simulated(main)
    assert ticks == [1.0, 6.5]


def test_clock_of_a_suspended_machine_stands_still():
    """Its timers fire later by the suspension; the time of others goes on."""
    ticks: list[tuple[float, float]] = []
    gate = Gate()

    async def process() -> None:
        while True:
            await trio.sleep(1.0)
            ticks.append((trio.current_time(), world_time()))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            start_behind(gate, nursery, process)
            await trio.sleep(1.5)
            gate.suspend()
            await trio.sleep(4.0)
            assert gate.now() == 1.5
            gate.open()
            await trio.sleep(1.0)
            assert trio.current_time() == 6.5
            assert gate.suspended_s() == 4.0
            nursery.cancel_scope.cancel()

    run_simulated(main)
    assert ticks == [(1.0, 1.0), (2.0, 6.0)]


@pytest.mark.parametrize("stop", [Gate.shut, Gate.suspend])
def test_what_waits_in_a_socket_arrives_before_a_timer_that_has_passed(
    stop: Callable[[Gate], None],
) -> None:
    """The loop of trio looks at sockets before deadlines when a process resumes."""
    gate, answer, received = Gate(), trio.Event(), list[bool]()

    async def process() -> None:
        with trio.move_on_after(2.0):
            await answer.wait()
            received.append(True)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            start_behind(gate, nursery, process)
            await trio.sleep(1.0)
            stop(gate)
            await trio.sleep(3.0)
            answer.set()
            await trio.sleep(1.0)
            assert not received
            gate.open()

    run_simulated(main)
    assert received


def test_thread_of_an_ended_process_does_nothing():
    calls: list[str] = []

    async def process() -> None:
        await trio.to_thread.run_sync(calls.append, "written")

    async def main() -> None:
        gate, threads = Gate(), trio.CancelScope()

        async def run_in_scope() -> None:
            with threads:
                await process()

        async with trio.open_nursery() as nursery:
            start_behind(gate, nursery, run_in_scope)
            await trio.lowlevel.checkpoint()
            gate.end()
            threads.cancel()

    with simulated_processes(1, SimThreads(Random(1), delay_max_s=1.0)):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not calls
