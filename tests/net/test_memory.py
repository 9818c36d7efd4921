"""The bound on requests in flight: it holds, and nobody waits for ever."""

import attrs
import trio
import trio.testing

from kwire.net.memory import STALLED_S, Memory


@attrs.define(eq=False)
class Peer:
    last_active: float = 0.0
    closed: str = ""

    def close(self, reason: str) -> None:
        self.closed = reason


async def test_waits_until_an_answer_frees_bytes() -> None:
    memory = Memory(100)
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


async def test_one_incomplete_frame_passes_the_bound() -> None:
    memory = Memory(100)
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


async def test_long_polls_do_not_keep_frames_from_being_completed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Some fetch is nearly always being answered, and frees next to nothing."""
    memory = Memory(100)
    memory.answering = 1
    first, second = Peer(), Peer()
    await memory.claim(60, first)
    await memory.claim(40, second)
    with trio.fail_after(2 * STALLED_S):
        await memory.claim(10, first)
    assert memory.used == 110


async def test_the_exempt_frame_is_closed_when_it_stalls(
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory = Memory(100)
    first, second = Peer(trio.current_time()), Peer()
    await memory.claim(200, first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.claim, 10, second)
        await trio.sleep(STALLED_S + 1)
        assert "stalled" in first.closed
        memory.free(200, first)
    assert memory.used == 10
