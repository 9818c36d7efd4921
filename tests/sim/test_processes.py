"""Simulated processes: a paused one takes no step, and an ended one's threads do nothing."""

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
    suspended_s,
    world_time,
)


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

    with simulated_processes(1, SimThreads(Random(1))):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert ticks == [1.0, 6.5]


def test_time_of_a_process_stops_while_its_machine_is_suspended():
    """Invariant 34 needs it: a lease that follows this time would outlast the session."""
    ticks: list[tuple[float, float, float]] = []

    async def tick() -> None:
        with trio.fail_after(3.5):
            while True:
                await trio.sleep(1.0)
                ticks.append((trio.current_time(), suspended_s(), world_time()))

    async def main() -> None:
        gate = Gate()
        async with trio.open_nursery() as nursery:
            start_behind(gate, nursery, tick)
            await trio.sleep(1.5)
            gate.suspend()
            await trio.sleep(5.0)
            gate.open()

    with (
        simulated_processes(1, SimThreads(Random(1))),
        pytest.RaisesGroup(trio.TooSlowError),
    ):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert ticks == [(1.0, 0.0, 1.0), (2.0, 5.0, 7.0), (3.0, 5.0, 8.0)]


def test_suspended_process_can_be_ended():
    """Its shielded threads end as well, although the timers have stopped."""
    ended_at: list[float] = []

    async def write() -> None:
        try:
            await trio.to_thread.run_sync(list, "written")
        finally:
            ended_at.append(world_time())

    async def main() -> None:
        gate, threads = Gate(), trio.CancelScope()

        async def run_in_scope() -> None:
            with threads:
                await write()

        async with trio.open_nursery() as nursery:
            start_behind(gate, nursery, run_in_scope)
            await trio.sleep(0.1)
            gate.suspend()
            await trio.sleep(5.0)
            gate.end()
            threads.cancel()

    with simulated_processes(1, SimThreads(Random(1), delay_max_s=1.0)):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert ended_at
    assert 5.1 < ended_at[0] < 6.1


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
