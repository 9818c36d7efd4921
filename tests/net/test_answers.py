"""Answers: sent together where they are small, and to readers that are slow, idle or muted."""

import logging
import socket
from struct import pack

import pytest
import trio
import trio.testing

from kwire.net.limits import Limits
from kwire.net.turns import TURN_FRAMES
from tests.support.net.node import BULK_BYTES, echo, frames_of, running, settle

pytestmark = pytest.mark.usefixtures("each_way_to_wait", "each_way_to_answer")


async def test_answers_held_back_are_sent_when_the_next_request_waits() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"one", b"two", b"wait.", b"three"))
            assert [await client.read_frame() for _ in range(2)] == [b"one", b"two"]
            node.sessions[0].go.set()
            assert [await client.read_frame() for _ in range(2)] == [b"wait.", b"three"]


async def test_answers_held_back_are_sent_before_the_connection_ends() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"one", b"two", b"stop."))
            assert [await client.read_frame() for _ in range(2)] == [b"one", b"two"]
            assert await client.is_closed()


async def test_answers_held_back_are_sent_when_the_last_request_has_no_answer() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"one", b"two", b"none."))
            assert [await client.read_frame() for _ in range(2)] == [b"one", b"two"]


NARROW = Limits(socket_send_buffer_bytes=4096)
"""The kernel takes a few small answers, and no more before the client reads."""


async def test_answers_to_slow_reader_are_sent_while_a_later_request_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 103: finished answers are sent as the client reads, whatever comes after them."""
    async with running(NARROW) as node:
        node.listen()
        async with await node.connect_narrow() as client:
            await client.send_bytes(frames_of(*[b"bulk."] * 12, b"wait.", b"last"))
            await node.sessions[0].waiting.wait()
            await settle()
            with trio.fail_after(1):
                for _ in range(12):
                    assert len(await client.read_frame()) == BULK_BYTES
            node.sessions[0].go.set()
            assert [await client.read_frame() for _ in range(2)] == [b"wait.", b"last"]


async def test_answers_stay_in_order_when_a_request_ends_before_a_slow_reader_has_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(NARROW) as node:
        node.listen()
        async with await node.connect_narrow() as client:
            await client.send_bytes(frames_of(*[b"bulk."] * 12, b"wait.", b"one", b"bulk.", b"two"))
            await node.sessions[0].waiting.wait()
            await settle()
            node.sessions[0].go.set()
            await settle()
            with trio.fail_after(1):
                sizes = [len(await client.read_frame()) for _ in range(12)]
                assert sizes == [BULK_BYTES] * 12
                words = [await client.read_frame() for _ in range(4)]
            assert words == [b"wait.", b"one", bytes(BULK_BYTES), b"two"]


async def test_answers_to_slow_reader_are_sent_before_it_is_muted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 104: muting delays reading, not the answers that are due."""
    async with running(NARROW) as node:
        node.listen()
        async with await node.connect_narrow() as client:
            await client.send_bytes(frames_of(*[b"bulk."] * 12, b"mute.", b"after"))
            await settle()
            started = trio.current_time()
            with trio.fail_after(1):
                for _ in range(12):
                    assert len(await client.read_frame()) == BULK_BYTES
                assert await client.read_frame() == b"mute."
            assert await client.read_frame() == b"after"
            assert trio.current_time() >= started + 5


async def test_few_requests_of_a_client_that_does_not_read_are_answered_ahead(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 101: requests are not answered ahead into memory."""
    async with running(NARROW) as node:
        node.listen()
        client = await node.connect_narrow()
        await client.send_bytes(frames_of(*[b"bulk."] * 5000))
        await settle()
        assert node.sessions[0].answered <= 4 * TURN_FRAMES
        await client.stream.aclose()
        await node.wait_connection_count(0)


async def test_connection_of_slow_reader_is_closed_after_its_reset(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A change that it requested is still made; then its connection is closed."""
    async with running(NARROW) as node:
        node.listen()
        client = await node.connect_narrow()
        await client.send_bytes(frames_of(*[b"bulk."] * 12, b"write"))
        await node.sessions[0].waiting.wait()
        await settle()
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        client.stream.socket.close()
        await settle()
        assert trio.lowlevel.current_statistics().tasks_runnable == 0, "nothing spins"
        node.sessions[0].go.set()
        await node.wait_connection_count(0)
        assert node.sessions[0].answered == 13


async def test_slow_reader_of_a_large_answer_is_not_idle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(Limits(connections_max_idle_ms=60_000)) as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"large"))
            for _ in range(10):
                await trio.sleep(20)
                await client._exactly(5 << 20)
            assert trio.current_time() - node.started >= 200
            await client._exactly(4)
            assert await echo(client, b"fine") == b"fine"


async def test_client_that_never_reads_its_answer_is_closed_as_idle(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """invariant 101: half-open connections end, in the middle of an answer too."""
    caplog.set_level(logging.INFO, "kwire")
    async with running(Limits(connections_max_idle_ms=60_000)) as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"large"))
            await trio.sleep(65)
            await settle()
            assert not node.service.connections
        assert "reason=idle" in caplog.text


async def test_connection_that_waits_for_the_broker_is_not_idle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(Limits(connections_max_idle_ms=2000)) as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"wait."))
            await trio.sleep(4)
            node.sessions[0].go.set()
            assert await client.read_frame() == b"wait."


async def test_muted_connection_is_closed_when_it_is_idle(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """invariant 104: as in Kafka, whatever the throttle time."""
    caplog.set_level(logging.INFO, "kwire")
    async with running(Limits(connections_max_idle_ms=2000)) as node:
        node.listen()
        async with await node.connect() as client:
            assert await echo(client, b"mute.") == b"mute."
            await trio.sleep(4)
            assert not node.service.connections
    assert "reason=idle" in caplog.text


@pytest.mark.notices_hang_up
@pytest.mark.parametrize("hung_up_before", [False, True])
async def test_muted_connection_is_closed_when_its_client_hangs_up(
    hung_up_before: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """invariant 104: else it would stay until the throttle time is over, which may be days."""
    async with running() as node:
        node.listen()
        client = await node.connect()
        await client.send_bytes(frames_of(b"write"))
        session = node.sessions[0]
        await session.waiting.wait()
        session.muted_s = 1e5
        if not hung_up_before:
            session.go.set()
            assert await client.read_frame() == b"write"
        await client.stream.aclose()
        await settle()
        session.go.set()
        await settle()
        assert not node.service.connections
        assert trio.current_time() == node.started
        assert session.answered == 1


@pytest.mark.parametrize("apart", [False, True])
async def test_requests_sent_before_a_hang_up_are_served_when_the_mute_ends(
    apart: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """They may change something, and their client does not wait for an answer."""
    async with running() as node:
        node.listen()
        client = await node.connect()
        if apart:
            assert await echo(client, b"mute.") == b"mute."
            await client.send_bytes(frames_of(b"after"))
        else:
            await client.send_bytes(frames_of(b"mute.", b"after"))
            assert await client.read_frame() == b"mute."
        await client.stream.aclose()
        await settle()
        assert (node.sessions[0].answered, len(node.service.connections)) == (1, 1)
        await trio.sleep(5)
        await settle()
        assert (node.sessions[0].answered, len(node.service.connections)) == (2, 0)


@pytest.mark.notices_hang_up
@pytest.mark.parametrize("body", [b"read.", b"cut"])
async def test_request_for_memory_ends_when_its_client_hangs_up(
    body: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """invariant 95: neither for a request that only reads nor for a frame that stays incomplete."""
    async with running(Limits(queued_max_request_bytes=1000)) as node:
        node.listen()
        async with await node.connect() as first:
            await first.send_bytes(frames_of(b"wait." + bytes(990)))
            await node.sessions[0].waiting.wait()
            second = await node.connect()
            await second.send_bytes(pack(">i", 50) + body.ljust(50 if body == b"read." else 20))
            await settle()
            assert len(node.service.connections) == 2
            await second.stream.aclose()
            await settle()
            assert len(node.service.connections) == 1
            assert trio.current_time() == node.started
            assert not node.service._memory._waiting


async def test_change_that_waits_for_memory_is_made_after_its_client_hung_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(Limits(queued_max_request_bytes=1000)) as node:
        node.listen()
        async with await node.connect() as first:
            await first.send_bytes(frames_of(b"wait." + bytes(990)))
            await node.sessions[0].waiting.wait()
            second = await node.connect()
            await second.send_bytes(frames_of(b"write" + bytes(45)))
            await settle()
            await second.stream.aclose()
            await settle()
            assert len(node.service.connections) == 2
            node.sessions[0].go.set()
            node.sessions[1].go.set()
            await settle()
            assert node.sessions[1].answered == 1
            assert len(node.service.connections) == 1


async def test_slow_reader_holds_one_answer_and_delays_no_other_client() -> None:
    """invariant 101."""
    async with running() as node:
        node.listen()
        slow = await node.connect()
        await slow.send_bytes(frames_of(*[b"large"] * 5))
        await settle()
        assert node.sessions[0].answered == 0
        async with await node.connect() as good:
            assert await echo(good, b"fine") == b"fine"
        await slow.stream.aclose()
        await node.wait_connection_count(0)


async def test_requests_of_a_muted_client_are_answered_when_the_mute_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 104."""
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            started = trio.current_time()
            assert await echo(client, b"mute.") == b"mute."
            assert trio.current_time() == started, "the answer itself is not held back"
            assert await echo(client, b"after") == b"after"
            assert trio.current_time() >= started + 5


async def test_muted_connection_takes_no_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 104: what the client sends meanwhile stays in the kernel or with the client."""
    async with running() as node:
        node.listen()
        async with await node.connect() as client, trio.open_nursery() as nursery:
            assert await echo(client, b"mute.") == b"mute."
            nursery.start_soon(client.send_bytes, frames_of(*[bytes(1 << 20)] * 20))
            await trio.sleep(4)
            (connection,) = node.service.connections
            assert connection.framer.buffer_bytes == 0
            assert node.service._memory.used == 0
            for _ in range(20):
                assert len(await client.read_frame()) == 1 << 20
            assert trio.current_time() - node.started >= 5
