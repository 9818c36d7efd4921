"""The HTTP pages for monitoring: their answers, and the limits of their clients."""

import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kwire.net.http_pages import BODIES_MAX, CLIENTS_MAX, Page, serve_pages


async def numbers() -> Page:
    return Page(200, [f"number {n}" for n in range(3)])


async def starting() -> Page:
    return Page(503, ["starting"])


async def fail() -> Page:
    def lines():
        yield "first"
        raise ZeroDivisionError("a bug")

    return Page(200, lines())


PAGES = {"/metrics": numbers, "/readyz": starting, "/broken": fail}


@asynccontextmanager
async def serve() -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_pages, "127.0.0.1", 0, PAGES)
        nursery.cancel_scope.cancel()


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Send a request; return the status line and the body of the answer."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        answer = b"".join([part async for part in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK", b"number 0\nnumber 1\nnumber 2\n"),
        (b"GET /metrics?name=x HTTP/1.1", b"200 OK", b"number 0\nnumber 1\nnumber 2\n"),
        (b"HEAD /metrics HTTP/1.1", b"200 OK", b""),
        (b"GET /readyz HTTP/1.1", b"503 Service Unavailable", b"starting\n"),
        (b"GET / HTTP/1.1", b"404 Not Found", b"only /metrics, /readyz, /broken\n"),
        (b"GET /metrics/x HTTP/1.1", b"404 Not Found", b"only /metrics, /readyz, /broken\n"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed", b"only GET and HEAD\n"),
        (b"\xff\xff", b"405 Method Not Allowed", b"only GET and HEAD\n"),
    ],
)
async def test_pages_and_requests_for_others_get_their_status(
    request_line: bytes, status: bytes, body: bytes
) -> None:
    async with serve() as port:
        assert await ask(port, request_line + b"\r\nHost: x\r\n\r\n") == (
            b"HTTP/1.1 " + status,
            body,
        )


async def test_page_that_fails_is_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    async with serve() as port:
        status, _ = await ask(port, b"GET /broken HTTP/1.1\r\n\r\n")
        assert status == b"HTTP/1.1 500 Internal Server Error"
        (line,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
        assert line.exc_info is not None
        status, _ = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert status == b"HTTP/1.1 200 OK"


async def test_clients_over_the_limit_wait_in_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """invariant 102: each accepted connection costs a descriptor, of which clients need some."""
    accepted = 0
    accept = trio.SocketListener.accept

    async def count_accept(listener: trio.SocketListener) -> trio.SocketStream:
        nonlocal accepted
        stream = await accept(listener)
        accepted += 1
        return stream

    monkeypatch.setattr(trio.SocketListener, "accept", count_accept)
    async with serve() as port:
        crowd = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CLIENTS_MAX + 5)]
        await trio.testing.wait_all_tasks_blocked()
        assert accepted == CLIENTS_MAX
        for stream in crowd:
            await stream.aclose()
        status, _ = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert status == b"HTTP/1.1 200 OK"
        assert accepted == CLIENTS_MAX + 6


async def test_accepting_goes_on_after_descriptors_ran_out(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept = trio.SocketListener.accept

    async def failing(listener: trio.SocketListener) -> trio.SocketStream:
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", failing)
    async with serve() as port:
        status, _ = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert status == b"HTTP/1.1 200 OK"


async def test_client_that_sends_nothing_is_disconnected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serve() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        assert await stream.receive_some() == b""
        assert trio.current_time() >= 10


async def test_slow_clients_share_a_few_bodies_of_a_large_page() -> None:
    """A body of 8 MB is more than the kernel takes for a client that reads nothing."""
    line = "x" * (1 << 20)
    page_count = 0

    async def large() -> Page:
        nonlocal page_count
        page_count += 1
        return Page(200, [line] * 8)

    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve_pages, "127.0.0.1", 0, {"/metrics": large})
        crowd = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CLIENTS_MAX)]
        for stream in crowd:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert await stream.receive_some(8) == b"HTTP/1.1"
        assert page_count == BODIES_MAX
        for stream in crowd[1:]:
            await stream.aclose()
        async with crowd[0] as stream:
            rest = b"".join([part async for part in stream])
        assert rest.endswith(b"\r\n\r\n" + (line.encode() + b"\n") * 8)
        _, body = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (page_count, len(body)) == (BODIES_MAX + 1, 8 * (len(line) + 1))
        nursery.cancel_scope.cancel()


async def test_small_page_is_made_for_each_client() -> None:
    page_count = 0

    async def small() -> Page:
        nonlocal page_count
        page_count += 1
        return Page(200, [f"{page_count}"])

    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve_pages, "127.0.0.1", 0, {"/livez": small})
        bodies = [(await ask(port, b"GET /livez HTTP/1.1\r\n\r\n"))[1] for _ in range(9)]
        assert bodies == [f"{number}\n".encode() for number in range(1, 10)]
        nursery.cancel_scope.cancel()
