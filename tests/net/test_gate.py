"""Small services that other tasks wait for: tasks that came before they ran are served, too."""

import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kwire.net.gate import Gate
from kwire.net.held_back import HeldBack
from kwire.net.send import Sender


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


async def test_gate_lets_few_through_a_turn() -> None:
    """Two a turn; trio runs a turn's tasks in any order, so a look may see those of two turns."""
    gate = Gate(2)
    through: list[int] = []

    async def enter(number: int) -> None:
        await gate.enter()
        through.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run)
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


async def test_who_enters_before_the_gate_runs_gets_through() -> None:
    gate = Gate(2)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(gate.enter)
        await wait_all_tasks_blocked()
        nursery.start_soon(gate.run)
        nursery.start_soon(gate.enter)
        await wait_all_tasks_blocked()
        left = len(nursery.child_tasks) - 1
        nursery.cancel_scope.cancel()
    assert left == 0


async def test_answers_held_back_before_the_service_runs_are_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    held_back = HeldBack()
    first, second = Sender(ours), Sender(ours)
    held_back.add(first, [b"one"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held_back.run)
        await wait_all_tasks_blocked()
        held_back.add(second, [b"two"])
        await wait_all_tasks_blocked()
        assert not first.unsent
        assert not second.unsent
        nursery.cancel_scope.cancel()
    assert theirs.recv(100) == b"onetwo"
