"""Answers to requests that need not wait: the limits and the order hold for them too."""

import pytest
import trio
import trio.testing

from kwire.net.limits import Limits
from tests.support.net.node import BULK_BYTES, frames_of, running, settle

LARGE = 100_000
"""The bytes of a frame that arrives in several pieces, so that its memory is counted before."""
NARROW = Limits(socket_send_buffer_bytes=4096)


async def test_request_that_need_not_wait_waits_for_request_memory() -> None:
    """invariant 95."""
    async with running(Limits(queued_max_request_bytes=1000)) as node:
        node.listen()
        async with await node.connect() as first, await node.connect() as second:
            await first.send_bytes(frames_of(b"wait." + bytes(990)))
            await node.sessions[0].waiting.wait()
            await second.send_bytes(frames_of(bytes(50)))
            await settle()
            assert node.sessions[1].answered == 0
            node.sessions[0].go.set()
            assert await second.read_frame() == bytes(50)
            assert len(await first.read_frame()) == 995


@pytest.mark.parametrize("word", [b"echo.", b"none."])
@pytest.mark.parametrize("size", [50, LARGE])
async def test_memory_of_a_request_is_free_once_it_is_answered(word: bytes, size: int) -> None:
    """invariant 95."""
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(*[word + bytes(size)] * 3, b"last"))
            if word == b"echo.":
                for _ in range(3):
                    assert len(await client.read_frame()) == len(word) + size
            assert await client.read_frame() == b"last"
            memory = node.service._memory
            assert (memory.used, memory.answering) == (0, 0)
            assert node.service._buffers.free_count == (size == LARGE)


async def test_request_counts_until_the_kernel_has_taken_the_answer() -> None:
    """invariant 95: what a slow reader leaves in memory counts."""
    async with running(NARROW) as node:
        node.listen()
        async with await node.connect_narrow() as client:
            await client.send_bytes(frames_of(b"bulk.", *[b"bulk."] * 40))
            await settle()
            assert node.service._memory.used == len(b"bulk.")
            for _ in range(41):
                assert len(await client.read_frame()) == BULK_BYTES
            await settle()
            assert node.service._memory.used == 0


async def test_answers_stay_in_order_when_the_kernel_takes_only_a_part() -> None:
    """Each request arrives alone, so none of the answers is held back."""
    async with running(NARROW) as node:
        node.listen()
        async with await node.connect_narrow() as client:
            bodies = [b"%d" % number + bytes(BULK_BYTES) for number in range(40)]
            async with trio.open_nursery() as nursery:

                async def send_one_by_one() -> None:
                    for body in bodies:
                        await client.send_bytes(frames_of(body))
                        await trio.testing.wait_all_tasks_blocked()

                nursery.start_soon(send_one_by_one)
                await settle()
                for body in bodies:
                    assert await client.read_frame() == body


async def test_buffer_of_a_request_that_fails_is_reused() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"crash" + bytes(LARGE)))
            assert await client.is_closed()
        await node.wait_connection_count(0)
        assert node.service._memory.used == 0
        assert node.service._buffers.free_count == 1


async def test_other_clients_are_served_between_requests_that_need_not_wait() -> None:
    """invariant 10: a turn is bounded, also if no request of it waits."""
    async with running() as node:
        node.listen()
        async with await node.connect() as busy, await node.connect() as other:
            await busy.send_bytes(frames_of(*[b"short"] * 2000))
            await other.send_bytes(frames_of(b"short"))
            assert await other.read_frame() == b"short"
            assert node.sessions[0].answered < 2000
            for _ in range(2000):
                assert await busy.read_frame() == b"short"
