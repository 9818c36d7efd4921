"""Services that other tasks wait for: tasks that wait before the service runs are served, too."""

import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kwire.net.send import Sender
from kwire.net.task_pacer import TaskPacer
from kwire.net.write_coalescer import WriteCoalescer


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


async def test_few_tasks_continue_in_each_turn() -> None:
    """Two a turn; trio runs a turn's tasks in any order, so one look may see two turns."""
    pacer = TaskPacer(2)
    through: list[int] = []

    async def enter(number: int) -> None:
        await pacer.wait_turn()
        through.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pacer.run)
        await wait_all_tasks_blocked()
        for number in range(20):
            nursery.start_soon(enter, number)
        counts = []
        while len(through) < 20:
            await trio.lowlevel.checkpoint()
            counts.append(len(through))
        nursery.cancel_scope.cancel()
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) <= 4
    assert sorted(through) == list(range(20))


async def test_tasks_that_wait_before_the_pacer_runs_continue() -> None:
    pacer = TaskPacer(2)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(pacer.wait_turn)
        await wait_all_tasks_blocked()
        nursery.start_soon(pacer.run)
        nursery.start_soon(pacer.wait_turn)
        await wait_all_tasks_blocked()
        waiting_count = len(nursery.child_tasks) - 1
        nursery.cancel_scope.cancel()
    assert waiting_count == 0


async def test_answers_held_back_before_the_service_runs_are_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    coalescer = WriteCoalescer()
    first, second = Sender(ours), Sender(ours)
    coalescer.hold(first, [b"one"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coalescer.run)
        await wait_all_tasks_blocked()
        coalescer.hold(second, [b"two"])
        await wait_all_tasks_blocked()
        assert not first.unsent
        assert not second.unsent
        nursery.cancel_scope.cancel()
    assert theirs.recv(100) == b"onetwo"
