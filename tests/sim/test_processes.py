"""Simulated processes: a paused one takes no step, and an ended one's threads do nothing."""

from random import Random

import trio
import trio.lowlevel
import trio.testing

from simulation.replication.processes import (
    Gate,
    SimThreads,
    simulated_processes,
    start_behind,
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
