"""Answers that wait: the requests that may be begun meanwhile, the order, and how they end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from struct import pack
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire.net.framing import Disconnect
from kwire.net.limits import Limits
from kwire.net.listener import Answer
from kwire.net.waiting_answers import WAITING_MAX, Unfinished
from kwire.testing.wire import TrioWireClient
from tests.support.net.node import BULK_BYTES, Node, frames_of, running, settle

LARGE = 300_000
"""The size of a request that arrives in a buffer of its own."""
pytestmark = pytest.mark.usefixtures("each_way_to_wait", "each_way_to_answer")


@attrs.define
class Session:
    """Answers "later…" when the test lets it, and everything else at once."""

    begun: list[bytes] = attrs.field(factory=list)
    may_answer: trio.Event = attrs.field(factory=trio.Event)
    failure: Exception | None = None
    bulk: bool = False
    muted_s: float = 0.0

    def answer_now(self, frame: memoryview) -> Answer:
        body = bytes(frame)
        self.begun.append(body)
        if body == b"none":
            return None
        if body == b"stop":
            raise Disconnect("asked to stop")
        if body.startswith(b"later"):
            return Unfinished(partial(self._finish, body))
        return [pack(">i", len(body)), body]

    async def _finish(self, body: bytes) -> list[Any]:
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        if self.bulk:
            return [pack(">i", BULK_BYTES), body.ljust(BULK_BYTES)]
        return [pack(">i", len(body)), body]

    def identify(self, user: str) -> None:
        """Do nothing, because no client shows a certificate."""

    def only_reads(self, frame: memoryview) -> bool:
        return False

    def may_begin_early(self, frame: memoryview) -> bool:
        return bytes(frame).startswith((b"later", b"early", b"none", b"stop"))

    def on_closed(self) -> None: ...


@asynccontextmanager
async def connection(limits: Limits | None = None) -> AsyncIterator[tuple[Node, Session, int]]:
    async with running(limits) as node:
        session = Session()
        port = node.service.bind("A", "127.0.0.1", 0).port
        node.service.accept("A", lambda *_: session)
        node.port = port
        yield node, session, port


async def answers(client: TrioWireClient, count: int) -> list[bytes]:
    with trio.fail_after(5):
        return [await client.read_frame() for _ in range(count)]


async def test_requests_that_may_be_begun_early_are_begun_while_an_answer_waits() -> None:
    async with connection() as (node, session, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later 1"))
        await settle()
        await client.send_bytes(frames_of(b"later 2", b"early"))
        await settle()
        assert session.begun == [b"later 1", b"later 2", b"early"]
        session.may_answer.set()
        assert await answers(client, 3) == [b"later 1", b"later 2", b"early"]
        assert node.service._memory.used == node.service._memory.answering == 0


async def test_other_requests_wait_until_earlier_answers_are_sent() -> None:
    async with connection() as (node, session, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later", b"other", b"last"))
        await settle()
        assert session.begun == [b"later"]
        session.may_answer.set()
        assert await answers(client, 3) == [b"later", b"other", b"last"]


async def test_number_of_answers_that_wait_is_bounded() -> None:
    async with connection() as (node, session, _), await node.connect() as client:
        bodies = [b"later %d" % n for n in range(2 * WAITING_MAX + 1)]
        await client.send_bytes(frames_of(*bodies))
        await settle()
        assert session.begun == bodies[:WAITING_MAX]
        session.may_answer.set()
        assert await answers(client, len(bodies)) == bodies


async def test_request_without_an_answer_passes_those_that_wait() -> None:
    async with connection() as (node, session, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later", b"none", b"early"))
        await settle()
        assert session.begun == [b"later", b"none", b"early"]
        session.may_answer.set()
        assert await answers(client, 2) == [b"later", b"early"]


async def test_answers_stay_in_order_for_a_slow_reader() -> None:
    async with connection(Limits(socket_send_buffer_bytes=4096)) as (node, session, _):
        session.bulk = True
        async with await node.connect_narrow() as client:
            bodies = [b"later %d" % number for number in range(12)]
            await client.send_bytes(frames_of(*bodies, b"early", b"other"))
            session.may_answer.set()
            await settle()
            received = [body.rstrip() for body in await answers(client, 14)]
            assert received == [*bodies, b"early", b"other"]


async def test_client_that_sends_no_more_gets_the_answers_that_wait() -> None:
    async with connection() as (node, session, port):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(frames_of(b"later 1", b"later 2"))
            await settle()
            await stream.send_eof()
            await settle()
            session.may_answer.set()
            received = b""
            with trio.fail_after(5):
                while data := await stream.receive_some():
                    received += data
        assert received == frames_of(b"later 1", b"later 2")
        await node.wait_connection_count(0)


async def test_failure_of_a_waiting_answer_ends_its_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connection() as (node, session, _), await node.connect() as client:
        session.failure = ZeroDivisionError("a bug")
        await client.send_bytes(frames_of(b"later 1", b"later 2"))
        await settle()
        session.may_answer.set()
        assert await client.is_closed()
        await node.wait_connection_count(0)
        assert node.service._memory.used == node.service._memory.answering == 0
        assert "a bug" in caplog.text
        session.failure = None
        async with await node.connect() as other:
            await other.send_bytes(frames_of(b"later"))
            assert await answers(other, 1) == [b"later"]


async def test_closed_connection_frees_the_memory_of_what_waits() -> None:
    async with connection() as (node, _, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later 1", b"later 2"))
        await settle()
        assert node.service._memory.used > 0
        (served,) = node.service.connections
        served.close("a test")
        await node.wait_connection_count(0)
        assert node.service._memory.used == node.service._memory.answering == 0


async def test_closed_connection_returns_the_buffer_of_a_request_that_waits() -> None:
    """invariant 95: there are few pooled buffers, so none may be lost."""
    async with connection() as (node, session, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later", b"other" + bytes(LARGE)))
        await settle()
        assert session.begun == [b"later"]
        (served,) = node.service.connections
        served.close("a test")
        await node.wait_connection_count(0)
        assert node.service._buffers.free_count == 1
        assert node.service._memory.used == node.service._memory.answering == 0


async def test_connection_with_an_answer_that_waits_is_not_idle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limits = Limits(connections_max_idle_ms=1000)
    async with connection(limits) as (node, session, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later"))
        await trio.sleep(5)
        session.may_answer.set()
        assert await answers(client, 1) == [b"later"]
        await trio.sleep(5)
        assert await client.is_closed()


async def test_client_that_never_reads_the_answers_is_closed_as_idle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 101: the broker waits for the client then, and not the client for the broker."""
    limits = Limits(socket_send_buffer_bytes=4096, connections_max_idle_ms=1000)
    async with connection(limits) as (node, session, _), await node.connect_narrow() as client:
        session.bulk = True
        session.may_answer.set()
        await client.send_bytes(frames_of(*[b"later"] * 60))
        await trio.sleep(10)
        assert not node.service.connections
        assert node.service._memory.used == node.service._memory.answering == 0


async def test_connection_is_not_idle_after_a_request_without_an_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limits = Limits(connections_max_idle_ms=1000)
    async with connection(limits) as (node, session, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later", b"none"))
        await trio.sleep(5)
        session.may_answer.set()
        assert await answers(client, 1) == [b"later"]


async def test_answers_that_wait_are_sent_before_a_refused_request_ends_the_connection() -> None:
    """An acknowledgement is not lost by a later request of the same connection."""
    async with connection() as (node, session, _), await node.connect() as client:
        await client.send_bytes(frames_of(b"later 1", b"later 2", b"stop"))
        await settle()
        session.may_answer.set()
        assert await answers(client, 2) == [b"later 1", b"later 2"]
        assert await client.is_closed()


async def test_answer_to_another_frame_ends_no_exemption_from_the_bound() -> None:
    """invariant 95: one frame at a time passes the bound of memory."""
    limits = Limits(queued_max_request_bytes=100)
    async with connection(limits) as (node, session, _), await node.connect() as client:
        memory = node.service._memory
        await client.send_bytes(frames_of(b"later"))
        await settle()
        (served,) = node.service.connections
        memory._exempt = served
        session.may_answer.set()
        assert await answers(client, 1) == [b"later"]
        assert memory.exempts(served)
